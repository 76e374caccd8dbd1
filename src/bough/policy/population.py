"""A population: named LoRA adapters on one frozen base, trained in common rows.

Members may differ in rank, scale and adapted layers. A row may contain calls of several
members; its base weights are multiplied once, and each member's tokens go through its own
adapter. Memory is the base once, and an adapter for each member.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from bough.errors import InputError
from bough.policy.adapters import ACTOR, AdapterWeights, Lora, adapted_layers, add_actor, has_adapter, load_named
from bough.policy.head import predict
from bough.policy.load import save_adapter
from bough.policy.policy import BUDGET, Answers, Policy
from bough.policy.recorded import padded
from bough.trees.build import CallTokens, PlainRow, TreeRow, join, shared_lines, shared_trees

NAME = re.compile(r"[A-Za-z0-9_-]+")
FROZEN = "@reference"  # not a member's name, so no member can have it
Row = TreeRow | PlainRow


class Member:
    """One adapter of a population: the weights that its optimizer changes."""

    def __init__(self, population: Population, name: str) -> None:
        self.population, self.name = population, name

    @property
    def device(self) -> torch.device:
        return self.population.policy.device

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Both matrices of each adapted layer, by their names in the model."""
        return self.population.adapter_parameters(self.name)

    def parameters(self) -> Iterator[nn.Parameter]:
        return (parameter for _, parameter in self.named_parameters())

    @property
    def num_bytes(self) -> int:
        """The memory of its weights."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self.parameters())

    def save(self, folder: Path) -> None:
        """Writes the adapter as peft does: a folder that peft, Bough and vLLM load."""
        weights = {name: parameter.detach() for name, parameter in self.named_parameters()}
        save_adapter(self.population.policy.model, self.name, folder, weights)


class Population:
    """Members on the model of `policy`, which must have no adapter yet; all its own weights are frozen.

    A member's reference is the base model, the adapter that `refer_to` was given, or its own adapter
    as it was at its last `freeze`.
    """

    def __init__(self, policy: Policy, *, grouped: bool | None = None) -> None:
        if has_adapter(policy.model):
            raise InputError("a population starts from a model without an adapter; add that adapter as a member")
        if policy.sharded:
            raise InputError("a population cannot be sharded over processes")
        self.policy = policy
        self.policy.model.requires_grad_(False)
        self.lora = SegmentedLora(grouped=grouped)
        self.align = ALIGNMENT if grouped or policy.device.type == "cuda" else 1
        self.members: dict[str, Member] = {}
        self._configs: dict[Lora, Any] = {}

    def add(self, name: str, start: Lora | Path) -> Member:
        """A new member: a fresh adapter, which changes nothing until it is trained, or the one in a folder."""
        if not NAME.fullmatch(name):
            raise InputError(f"{name!r} cannot be a member's name; use letters, digits, - and _")
        if name in self.members:
            raise InputError(f"there is a member named {name} already")
        if isinstance(start, Lora):
            self._add_adapter(name, self._config(start))
        else:
            self._check_layers(AdapterWeights.read(start).layers)
            self.policy.model = load_named(self.policy.model, start, name=name)
        self.members[name] = Member(self, name)
        self._take_over()
        return self.members[name]

    def remove(self, name: str) -> None:
        """Frees the member's adapter and its frozen copy."""
        if len(self.members) == 1:
            raise InputError(f"{name} is the population's last member; add another one first")
        for adapter in (name, name + FROZEN):
            if adapter in self.policy.model.peft_config:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # peft tells which adapter it switches on instead: here none is
                    self.policy.model.delete_adapter(adapter)
        del self.members[name]
        self._take_over()

    def freeze(self, name: str) -> None:
        """From now on the member's reference is its adapter as it is, without a gradient."""
        frozen = name + FROZEN
        if frozen not in self.policy.model.peft_config:
            self._add_adapter(frozen, deepcopy(self.policy.model.peft_config[name]))
            self._take_over()
        with torch.no_grad():
            for (_, own), (_, copy) in zip(self.adapter_parameters(name), self.adapter_parameters(frozen), strict=True):
                copy.copy_(own)

    def refer_to(self, folder: Path) -> None:
        """The adapter in a folder becomes the reference of all members that have no frozen copy of their own."""
        self._check_layers(AdapterWeights.read(folder).layers)
        self.policy.model = load_named(self.policy.model, folder, name=FROZEN)
        self._take_over()

    def adapter_parameters(self, name: str) -> Iterator[tuple[str, nn.Parameter]]:
        """The weights of an adapter by their names in the model."""
        for path, layer in self.policy.model.named_modules():
            for side in ("lora_A", "lora_B"):
                if name in getattr(layer, side, {}):
                    yield f"{path}.{side}.{name}.weight", getattr(layer, side)[name].weight

    def rows(
        self, calls: Mapping[str, Sequence[CallTokens]], *, share: bool = True, budget: int = BUDGET
    ) -> list[dict[str, Row]]:
        """What to compute together, at most `budget` tokens a row: of each row, what each member has in it."""
        rows: Sequence[Mapping[str, Row]]
        if share and self.policy.obstacle is None:
            rows = shared_trees(calls, budget)
            self.policy.check_ids([own for row in rows for own in row.values()])
        else:
            plain = self.policy.rows([call for own in calls.values() for call in own], share=share, budget=budget)
            rows = shared_lines(calls, [row for row in plain if isinstance(row, PlainRow)])
        return [dict(row) for row in rows]

    def answers(
        self, row: Mapping[str, Row], temperatures: Mapping[str, float] | None = None, *, reference: bool = False
    ) -> dict[str, Answers]:
        """What each member says to its calls in a row; with `reference`, what its reference does, without a gradient.

        The log-probabilities of a member are at its temperature, 1.0 unless given. The backward
        pass of a row must be done before another row is computed.
        """
        joined = join(list(row.values()), align=self.align)
        names: list[str | None] = list(row)
        if reference:
            kept = self.policy.model.peft_config
            names = [next((one for one in (name + FROZEN, FROZEN) if one in kept), None) for name in row]
        self.lora.segments = [AdaptedSegment(a, *s) for a, s in zip(names, joined.segments, strict=True)]
        self.lora.dropout = not reference
        heats = [(temperatures or {}).get(name, 1.0) for name in row]
        policy, tensor = self.policy, self.policy.row_reader.tensor
        with (
            torch.set_grad_enabled(torch.is_grad_enabled() and not reference),
            torch.autocast(policy.device.type, policy.autocast, enabled=policy.autocast is not None),
        ):
            hidden_MD, targets_M = policy.predictors(joined.row), tensor(joined.row.targets_M)
            # Members of one temperature are predicted together.
            sizes = [len(own.targets_M) for own in row.values()] if len(set(heats)) > 1 else [len(targets_M)]
            parts = zip(torch.split(hidden_MD, sizes), torch.split(targets_M, sizes), heats, strict=False)
            done = [
                predict(hidden_PD, targets_P, replace(policy.head, temperature=heat))
                for hidden_PD, targets_P, heat in parts
            ]
        found = done[0] if len(done) == 1 else [torch.cat(values) for values in zip(*done, strict=True)]
        lengths, index_N = joined.row.lengths, tensor(joined.row.index_N)
        by_call = [list(torch.split_with_sizes(values_M[index_N], lengths)) for values_M in found]
        answers, begin = {}, 0
        for name, own in row.items():
            end = begin + len(own.calls)
            logprobs, entropies, greedy = (values[begin:end] for values in by_call)
            answers[name] = Answers(logprobs, entropies, greedy)
            begin = end
        return answers

    def _config(self, lora: Lora) -> Any:
        """The peft configuration of a new adapter, as a model without adapters resolves it.

        peft would find the linear layers inside other adapters too.
        """
        if lora.experts:
            raise InputError("members of a population cannot adapt experts: those read routed tokens")
        if lora not in self._configs:
            base = self.policy.base
            config = deepcopy(base.config)
            config.__dict__.pop("quantization_config", None)
            # The first member's weights must not depend on its being the first.
            with torch.random.fork_rng(devices=[]):
                with torch.device("meta"):
                    outline = type(base)._from_config(config)
                adapted = add_actor(outline, lora)
            self._check_layers(adapted.targeted_module_names)
            self._configs[lora] = adapted.peft_config[ACTOR]
        return deepcopy(self._configs[lora])

    def _add_adapter(self, name: str, config: Any) -> None:
        from peft import get_peft_model

        if has_adapter(self.policy.model):
            self.policy.model.add_adapter(name, config)
        else:
            self.policy.model = get_peft_model(self.policy.model, config, adapter_name=name)

    def _take_over(self) -> None:
        """peft trains one adapter at a time, and switches it on; here all members are trained."""
        self.lora.attach(adapted_layers(self.policy.model))
        for path, parameter in self.policy.model.named_parameters():
            if ".lora_" in path:
                adapter = path.split(".")[-2]
                parameter.requires_grad_(not adapter.endswith(FROZEN))

    def _check_layers(self, layers: Iterable[str]) -> None:
        """InputError for an adapter on the head, which reads predictions instead of a row's tokens."""
        head = self.policy.base.get_output_embeddings()
        if any(self.policy.base.get_submodule(layer) is head for layer in layers):
            raise InputError("members of a population cannot adapt the head; leave it out of lora_target_modules")


# LoRA by segment: the tokens of one row go through different adapters, and through the base weights once.
# The layers are peft's, with their adapters switched off; a hook on each adds what the adapter of every segment says.
# On CUDA in bfloat16 all segments are two grouped matrix products a layer, elsewhere they are computed one after the
# other.

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
        grouped = self.grouped
        if grouped is None:
            grouped = len(stops) > 1 and x_TI.is_cuda and x_TI.dtype == torch.bfloat16
        drops = self.dropout and any(one is not None and one.training for one in lora.dropouts)
        aligned = lora.aligned and all(stop % ALIGNMENT == 0 for stop in stops)
        grouped = grouped and hasattr(functional, "grouped_mm") and aligned and not drops
        added_TO = (self._grouped if grouped else self._looped)(layer, lora, x_TI, stops)
        return (output + added_TO.view_as(output)).to(output.dtype)

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
