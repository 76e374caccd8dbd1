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
from bough.policy.recorded import padded

ALIGNMENT = 8  # tokens, and elements of each matrix: 16 bytes in bfloat16, which grouped products ask for
MAX_KNOWN = 16  # different sets of adapters in a row whose weights are kept at hand


class AdaptedSegment(NamedTuple):
    """Tokens `start` to `stop` of a row, and the adapter they go through; None is the base model alone."""

    adapter: str | None
    start: int
    stop: int


class LayerLora(NamedTuple):
    """The adapters of one layer, in the order of a row's segments: None where a segment has none there.

    Looked up once and kept: a large population would spend more time on finding its weights in peft's
    dictionaries than a GPU takes for the products.
    """

    names: list[str | None]
    downs: list[Tensor | None]
    ups: list[Tensor | None]
    dropouts: list[nn.Dropout | None]
    rank: int
    aligned: bool

    @classmethod
    def of(cls, layer: Any, adapters: Sequence[str | None]) -> LayerLora | None:
        """None where no segment has an adapter on this layer."""
        names = [name if name in layer.lora_A else None for name in adapters]
        if not any(names):
            return None
        downs = [layer.lora_A[name].weight if name else None for name in names]
        ups = [layer.lora_B[name].weight if name else None for name in names]
        dropouts = [layer.lora_dropout[name] if name else None for name in names]
        most = max(len(down) for down in downs if down is not None)
        sizes = layer.in_features, layer.out_features
        return cls(
            names, downs, ups,
            [one if isinstance(one, nn.Dropout) and one.p > 0 else None for one in dropouts],
            rank=-(-most // ALIGNMENT) * ALIGNMENT,
            aligned=all(size % ALIGNMENT == 0 for size in sizes),
        )  # fmt: skip

    def drops(self) -> bool:
        """Whether some segment has dropout now."""
        return any(one is not None and one.training for one in self.dropouts)


class SegmentedLora:
    """What the adapters add to the layers of a model, by segment of the row that is computed.

    `segments` is set before each forward pass and must stay until its backward pass is done:
    gradient checkpointing computes layers again. Tokens after the last segment belong to it.
    Without `dropout` there is none, whatever the adapters have. `grouped` decides between grouped
    products and a loop; None is by device and type.
    """

    def __init__(self, *, grouped: bool | None = None) -> None:
        self.dropout = True
        self.grouped = grouped
        self._attached: set[int] = set()
        self._known: dict[tuple[str | None, ...], dict[Any, LayerLora | None]] = {}
        self.segments = ()

    @property
    def segments(self) -> Sequence[AdaptedSegment]:
        return self._segments

    @segments.setter
    def segments(self, segments: Sequence[AdaptedSegment]) -> None:
        self._segments = segments
        names = tuple(segment.adapter for segment in segments)
        if names not in self._known and len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._layers = self._known.setdefault(names, {})

    def attach(self, layers: Sequence[Any]) -> None:
        """Takes over these layers of peft's, whose adapters may have changed; those it has already stay attached."""
        self._known.clear()
        self.segments = ()
        for layer in layers:
            layer._disable_adapters = True
            if id(layer) not in self._attached:
                self._attached.add(id(layer))
                layer.register_forward_hook(self._add)

    def _add(self, layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if layer not in self._layers:
            self._layers[layer] = LayerLora.of(layer, [segment.adapter for segment in self.segments])
        if (lora := self._layers[layer]) is None:
            return output
        x_TI, last = inputs[0].flatten(0, -2), self.segments[-1].stop
        if not last <= len(x_TI) <= padded(last, few=False):
            raise InputError(
                f"a layer reads {len(x_TI)} tokens of a row of {last}: the model routes tokens, "
                "so its layers cannot have several adapters; leave those layers out of the adapters"
            )
        stops = (*(segment.stop for segment in self.segments[:-1]), len(x_TI))
        # As peft does it: in the type of the adapter's weights, unless autocast decides.
        kind = x_TI.device.type
        autocast = torch.is_autocast_enabled(kind)
        weight = next(down for down in lora.downs if down is not None)
        x_TI = x_TI.to(torch.get_autocast_dtype(kind) if autocast else weight.dtype)
        compute = self._grouped if self._groups(lora, x_TI, stops) else self._looped
        added_TO = compute(layer, lora, x_TI, stops)
        return (output + added_TO.view_as(output)).to(output.dtype)

    def _groups(self, lora: LayerLora, x_TI: Tensor, stops: Sequence[int]) -> bool:
        """Whether the segments of a layer are computed as grouped products."""
        wanted = self.grouped
        if wanted is None:
            wanted = len(stops) > 1 and x_TI.is_cuda and x_TI.dtype == torch.bfloat16
        return (
            wanted
            and hasattr(functional, "grouped_mm")
            and lora.aligned
            and all(stop % ALIGNMENT == 0 for stop in stops)
            and not (self.dropout and lora.drops())
        )

    def _looped(self, layer: Any, lora: LayerLora, x_TI: Tensor, stops: Sequence[int]) -> Tensor:
        width = layer.out_features
        parts, start = [], 0
        for name, dropout, stop in zip(lora.names, lora.dropouts, stops, strict=True):
            x_SI = x_TI[start:stop]
            start = stop
            if name is None:
                parts.append(x_SI.new_zeros(len(x_SI), width))
                continue
            x_SI = dropout(x_SI) if dropout and self.dropout else x_SI
            parts.append(layer.lora_B[name](layer.lora_A[name](x_SI)) * layer.scaling[name])
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _grouped(self, layer: Any, lora: LayerLora, x_TI: Tensor, stops: Sequence[int]) -> Tensor:
        width = layer.out_features
        scaling = tuple(layer.scaling[name] if name else 0.0 for name in lora.names)
        scales = _on_device(scaling, torch.float32, x_TI.device)
        ends = _on_device(tuple(stops), torch.int32, x_TI.device)
        down_NRI = torch.stack([_padded(one, lora.rank, x_TI.shape[-1], x_TI) for one in lora.downs]).to(x_TI.dtype)
        ups = torch.stack([_padded(one, width, lora.rank, x_TI) for one in lora.ups])
        up_NOR = (ups * scales[:, None, None]).to(x_TI.dtype)
        with torch.autocast(x_TI.device.type, enabled=False):
            inner_TR = functional.grouped_mm(x_TI, down_NRI.transpose(1, 2), offs=ends)
            added_TO: Tensor = functional.grouped_mm(inner_TR, up_NOR.transpose(1, 2), offs=ends)
        if added_TO.requires_grad:
            # Its backward pass takes no gradient that is a broadcast view.
            added_TO.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
        return added_TO


def _padded(weight: Tensor | None, rows: int, columns: int, like: Tensor) -> Tensor:
    """The weight with zeros up to this size; zeros alone where there is none."""
    if weight is None:
        return like.new_zeros(rows, columns, dtype=torch.float32)
    if weight.shape == (rows, columns):
        return weight
    return functional.pad(weight, (0, columns - weight.shape[1], 0, rows - weight.shape[0]))


@lru_cache(maxsize=64)
def _on_device(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers that all layers of a row need: copied once, because each copy waits for the GPU."""
    return torch.tensor(values, dtype=dtype, device=device)
