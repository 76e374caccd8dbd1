"""The ledger: every item is kept or dropped for a reason, and the sums agree."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Ledger:
    """Counts of one kind of item (rows, calls, groups) in a stage."""

    item: str
    came_in: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def keep(self, count: int = 1) -> None:
        self.came_in += count
        self.kept += count

    def drop(self, reason: str, count: int = 1) -> None:
        self.came_in += count
        self.dropped[reason] += count

    def add(self, other: Ledger) -> None:
        """Adds the counts of another ledger of the same items."""
        self.came_in += other.came_in
        self.kept += other.kept
        self.dropped.update(other.dropped)

    def to_json(self) -> dict[str, Any]:
        assert self.came_in == self.kept + self.dropped.total(), "the ledger does not add up"
        return {"item": self.item, "in": self.came_in, "kept": self.kept, "dropped": dict(self.dropped.most_common())}

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Self:
        return cls(kept["item"], kept["in"], kept["kept"], Counter(kept["dropped"]))

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.most_common())
        one = f"{self.item[:-3]}y" if self.item.endswith("ies") else self.item.removesuffix("s")
        came_in = plural(self.came_in, one, self.item)
        return f"{came_in} in, {self.kept} kept, {self.dropped.total()} dropped" + (f" ({reasons})" if reasons else "")


# Metrics that add up exactly over micro-batches and processes, and what counts as a number.


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


# Counts as people read them: "1 step", "3 steps", "1,200 replies".

VOWELS = "aeiou"


def plural(number: float, one: str, many: str | None = None) -> str:
    """A number and what it counts: `one` of it, or `many`, by default `one` with the usual ending."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:,g}"
    return f"{shown} {one if number == 1 else many or _usual(one)}"


def _usual(noun: str) -> str:
    if noun.endswith("y") and noun[-2:-1] not in VOWELS:
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
