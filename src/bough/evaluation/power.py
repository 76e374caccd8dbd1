"""How many episodes would settle it, and how small a difference these could have shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bough.evaluation.distributions import bisect, normal_quantile

POWER = 0.8


@dataclass(frozen=True)
class Outlook:
    """What it would take.

    `tasks` would show the difference seen, were it the true one, four times in five;
    None where none was seen. `detectable` is the difference that the tasks there were
    would have shown as often, None where they are too few for any.
    """

    tasks: int | None
    detectable: float | None

    def to_json(self) -> dict[str, Any]:
        return {"tasks": self.tasks, "detectable": self.detectable, "power": POWER}


def outlook(differences: Sequence[float], alpha: float = 0.05) -> Outlook:
    """From one difference a task between two rates."""
    count = len(differences)
    mean = math.fsum(differences) / count
    # Half a task more in either direction: nothing seen so far is not nothing to come.
    square = (math.fsum(value * value for value in differences) + 1.0) / (count + 1.0)
    return Outlook(tasks_needed(abs(mean), square, alpha) if mean else None, _detectable(count, square, alpha))


def tasks_needed(difference: float, square: float, alpha: float = 0.05, power: float = POWER) -> int:
    """Tasks for a paired two-sided test to find `difference`; `square` is the mean squared difference a task.

    With one attempt a task `square` is the share of tasks that only one of the two
    solves, and this is Connor's formula for McNemar's test with a continuity correction.
    """
    return math.ceil(_needed(difference, square, alpha, power))


def _needed(difference: float, square: float, alpha: float, power: float = POWER) -> float:
    by_chance, by_truth = normal_quantile(1.0 - alpha / 2.0), normal_quantile(power)
    square = max(square, difference * difference, 1e-12)
    root = by_chance * math.sqrt(square) + by_truth * math.sqrt(max(0.0, square - difference * difference))
    needed = (root / difference) ** 2
    return needed / 4.0 * (1.0 + math.sqrt(1.0 + 4.0 / (needed * difference))) ** 2


def _detectable(count: int, square: float, alpha: float) -> float | None:
    """The difference for which `count` tasks are just enough."""
    if _needed(1.0, 1.0, alpha) > count:
        return None
    # No difference is larger than the share of tasks that differ.
    return bisect(lambda size: count - _needed(size, max(square, size), alpha), 1e-9, 1.0, 1e-6)
