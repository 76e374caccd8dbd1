"""Metrics that add up exactly over micro-batches and processes, and what counts as a number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # settings and losses share a file, and help must not load torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean kept as its sum and its count.

    Parts of a batch are added first and divided once, at the end; an average of averages
    would weigh a short micro-batch like a long one. Both parts may stay on the device:
    nothing waits for the GPU before `value` is read.
    """

    total: Tensor | float
    count: Tensor | float

    @classmethod
    def over(cls, values_N: Tensor, counted_N: Tensor) -> Mean:
        """The mean of `values_N` where the mask `counted_N` is true, without a gradient."""
        return cls(values_N.detach().where(counted_N, 0.0).sum(), counted_N.sum())

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float:
        """The mean as a number; NaN where nothing was counted."""
        count = float(self.count)
        return float(self.total) / count if count else math.nan


def add_metrics(parts: Iterable[Mapping[str, Mean]]) -> dict[str, Mean]:
    """The metrics of several micro-batches or ranks as one. A part need not have every metric."""
    whole: dict[str, Mean] = {}
    for part in parts:
        for name, mean in part.items():
            whole[name] = whole[name] + mean if name in whole else mean
    return whole


def is_finite(value: Any) -> bool:
    """Whether a value is a number that a float can hold: JSON also has NaN, true and integers of 400 digits."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except (OverflowError, ValueError):
        return False
