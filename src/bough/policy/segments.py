"""LoRA by segment: the tokens of one row go through different adapters, and through the base weights once.

The layers are peft's, with their adapters switched off; a hook on each adds what the adapter
of every segment says. On CUDA in bfloat16 all segments are two grouped matrix products a layer,
elsewhere they are computed one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from bough.errors import InputError
from bough.trees.attend import BLOCK

ALIGNMENT = 8  # tokens, and elements of each matrix: 16 bytes in bfloat16, which grouped products ask for


class AdaptedSegment(NamedTuple):
    """Tokens `start` to `stop` of a row, and the adapter they go through; None is the base model alone."""

    adapter: str | None
    start: int
    stop: int


class SegmentedLora:
    """What the adapters add to the layers of a model, by segment of the row that is computed.

    `segments` is set before each forward pass and must stay until its backward pass is done:
    gradient checkpointing computes layers again. Tokens after the last segment belong to it.
    Without `dropout` there is none, whatever the adapters have. `grouped` decides between grouped
    products and a loop; None is by device and type.
    """

    def __init__(self, *, grouped: bool | None = None) -> None:
        self.segments: Sequence[AdaptedSegment] = ()
        self.dropout = True
        self.grouped = grouped
        self._attached: set[int] = set()

    def attach(self, layers: Sequence[Any]) -> None:
        """Takes over these layers of peft's; those it has already stay as they are."""
        for layer in layers:
            layer._disable_adapters = True
            if id(layer) not in self._attached:
                self._attached.add(id(layer))
                layer.register_forward_hook(self._add)

    def _add(self, layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if not any(segment.adapter in layer.lora_A for segment in self.segments):
            return output
        x_TI = inputs[0].flatten(0, -2)
        *first, last = self.segments
        if len(x_TI) < last.stop or len(x_TI) - last.stop >= 2 * BLOCK:
            raise InputError(
                f"a layer reads {len(x_TI)} tokens of a row of {last.stop}: the model routes tokens, "
                "so its layers cannot have several adapters; leave those layers out of the adapters"
            )
        segments = [*first, last._replace(stop=len(x_TI))]
        # As peft does it: in the type of the adapter's weights, unless autocast decides.
        kind = x_TI.device.type
        autocast = torch.is_autocast_enabled(kind)
        weight = next(iter(layer.lora_A.values())).weight
        dtype = torch.get_autocast_dtype(kind) if autocast else weight.dtype
        x_TI = x_TI.to(dtype)
        added_TO = self._grouped(layer, x_TI, segments) if self._groups(layer, x_TI, segments) else None
        if added_TO is None:
            added_TO = self._looped(layer, x_TI, segments, output.shape[-1])
        return (output + added_TO.view_as(output)).to(output.dtype)

    def _groups(self, layer: Any, x_TI: Tensor, segments: Sequence[AdaptedSegment]) -> bool:
        """Whether the segments of a layer are computed as grouped products."""
        wanted = self.grouped
        if wanted is None:
            wanted = len(segments) > 1 and x_TI.is_cuda and x_TI.dtype == torch.bfloat16
        sizes = [*(segment.stop for segment in segments), x_TI.shape[-1], layer.get_base_layer().out_features]
        return (
            wanted
            and hasattr(functional, "grouped_mm")
            and all(size % ALIGNMENT == 0 for size in sizes)
            and not any(self._dropout(layer, segment.adapter) for segment in segments)
        )

    def _dropout(self, layer: Any, adapter: str | None) -> nn.Module | None:
        found = layer.lora_dropout[adapter] if self.dropout and adapter in layer.lora_A else None
        return found if isinstance(found, nn.Dropout) and found.training and found.p > 0 else None

    def _looped(self, layer: Any, x_TI: Tensor, segments: Sequence[AdaptedSegment], width: int) -> Tensor:
        parts = []
        for adapter, start, stop in segments:
            x_SI = x_TI[start:stop]
            if adapter not in layer.lora_A:
                parts.append(x_SI.new_zeros(stop - start, width))
                continue
            dropout = self._dropout(layer, adapter)
            x_SI = dropout(x_SI) if dropout else x_SI
            parts.append(layer.lora_B[adapter](layer.lora_A[adapter](x_SI)) * layer.scaling[adapter])
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _grouped(self, layer: Any, x_TI: Tensor, segments: Sequence[AdaptedSegment]) -> Tensor:
        present = [segment.adapter if segment.adapter in layer.lora_A else None for segment in segments]
        most = max(len(layer.lora_A[name].weight) for name in present if name)
        rank = -(-most // ALIGNMENT) * ALIGNMENT
        width = layer.get_base_layer().out_features
        downs, ups = [], []
        for name in present:
            if name is None:
                downs.append(x_TI.new_zeros(rank, x_TI.shape[-1], dtype=torch.float32))
                ups.append(x_TI.new_zeros(width, rank, dtype=torch.float32))
                continue
            down_RI, up_OR = layer.lora_A[name].weight, layer.lora_B[name].weight
            missing = rank - len(down_RI)
            downs.append(functional.pad(down_RI, (0, 0, 0, missing)) if missing else down_RI)
            ups.append(functional.pad(up_OR, (0, missing)) if missing else up_OR)
        scales = _on_device(tuple(layer.scaling[n] if n else 0.0 for n in present), torch.float32, x_TI.device)
        stops = _on_device(tuple(segment.stop for segment in segments), torch.int32, x_TI.device)
        down_NRI = torch.stack(downs).to(x_TI.dtype)
        up_NOR = (torch.stack(ups) * scales[:, None, None]).to(x_TI.dtype)
        with torch.autocast(x_TI.device.type, enabled=False):
            inner_TR = functional.grouped_mm(x_TI, down_NRI.transpose(1, 2), offs=stops)
            added_TO: Tensor = functional.grouped_mm(inner_TR, up_NOR.transpose(1, 2), offs=stops)
        if added_TO.requires_grad:
            # Its backward pass takes no gradient that is a broadcast view.
            added_TO.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
        return added_TO


@lru_cache(maxsize=64)
def _on_device(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers that all layers of a row need: copied once, because each copy waits for the GPU."""
    return torch.tensor(values, dtype=dtype, device=device)
