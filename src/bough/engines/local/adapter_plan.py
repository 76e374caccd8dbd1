"""Which token of a pass is computed with which adapter, and how.

A layer's product with its own weights is made once for all tokens. What the adapters add is
computed for one adapter after the other (`Segments`; a row has the same bits whatever the
others are) or for all together (`Stacked`, which a CUDA graph can hold).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.nn.functional import linear

from bough.engines.local.stack import Slots, Stack
from bough.errors import InputError
from bough.policy.adapter_weights import LoraPair

WHOLE = 1 << 60  # more rows than there are


class AdaptedLayer:
    """A layer that some adapter changes: `own` is how the policy computes it.

    Where the policy has an adapter of its own there, `bare` computes the layer without it.
    """

    def __init__(self, module: Any, bare: Callable[[Tensor], Tensor] | None = None) -> None:
        self.module, self.bare = module, bare
        self.own: Callable[[Tensor], Tensor] = module.forward
        self.pairs: dict[str, LoraPair] = {}
        self.stack: Stack | None = None


class Plan(Protocol):
    """Computes layers in a pass."""

    def compute(self, layer: AdaptedLayer, x: Tensor) -> Tensor:
        """The layer's output, for each token with its adapter."""


class Segment(NamedTuple):
    """The rows of one adapter in a pass."""

    adapter: str
    begin: int
    end: int


class Segments:
    """Tokens that are sorted by adapter; those without one come first."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self.num_own = 0 if segments[0].adapter else segments[0].end
        self.total = segments[-1].end

    @classmethod
    def of(cls, adapters: Sequence[str], sizes: Sequence[int]) -> Self | None:
        """For pieces with these adapters, sorted, and numbers of tokens; None if no adapter is among them."""
        if not any(adapters):
            return None
        segments: list[Segment] = []
        for adapter, size in zip(adapters, sizes, strict=True):
            end = segments[-1].end if segments else 0
            if segments and segments[-1].adapter == adapter:
                segments[-1] = segments[-1]._replace(end=end + size)
            else:
                segments.append(Segment(adapter, end, end + size))
        return cls(segments)

    @classmethod
    def whole(cls, adapter: str) -> Self | None:
        """For a pass with one adapter; layers may be given its tokens in any form."""
        return cls([Segment(adapter, 0, WHOLE)]) if adapter else None

    def compute(self, layer: AdaptedLayer, x: Tensor) -> Tensor:
        if self.total != WHOLE:
            _check_rows(x, self.total)
        out = layer.own(x) if layer.bare is None else self._split(layer, layer.bare, x)
        x_TI, out_TO = x.flatten(0, -2), out.flatten(0, -2)
        for adapter, begin, end in self.segments:
            if (pair := layer.pairs.get(adapter)) is not None:
                out_TO[begin:end] += _two_rows(partial(_added, pair), x_TI[begin:end])
        return out_TO.view(out.shape)

    def _split(self, layer: AdaptedLayer, bare: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The policy's own adapter is only for the tokens without another."""
        if self.num_own == 0:
            return bare(x)
        own, others = x[..., : self.num_own, :], x[..., self.num_own :, :]
        return torch.cat([_two_rows(layer.own, own), _two_rows(bare, others)], -2)


class Stacked:
    """Tokens in any order, each with the slot of its adapter."""

    def __init__(self, slots: Slots, slot_T: Tensor) -> None:
        self.own_T1 = (slot_T == 0)[:, None]
        self.others_TS1 = slots.others(slot_T)

    def compute(self, layer: AdaptedLayer, x: Tensor) -> Tensor:
        _check_rows(x, len(self.own_T1))
        out = layer.own(x)
        if layer.bare is not None:
            out = torch.where(self.own_T1, out, layer.bare(x))
        if not layer.stack:
            return out
        low_TX, up_XO = layer.stack.factors(x.flatten(0, -2), self.others_TS1)
        return out + (low_TX @ up_XO).view(out.shape).to(out.dtype)


def _check_rows(x: Tensor, total: int) -> None:
    """A token's adapter is known by its place in the pass."""
    if x.shape[-2] != total or x.shape[:-2].numel() != 1:
        raise InputError(
            f"a layer with an adapter was given {list(x.shape)} numbers for {total} tokens; use layout='general'"
        )


def _added(pair: LoraPair, x_TI: Tensor) -> Tensor:
    return linear(linear(x_TI.to(pair.down_RI.dtype), pair.down_RI), pair.up_OR)


def _two_rows(compute: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`compute(x)` with at least two rows: BLAS rounds a single one differently."""
    if x.shape[-2] != 1:
        return compute(x)
    return compute(torch.cat([x, x], -2))[..., :1, :]
