"""What a member achieved: one value per task, the same tasks for all members; and what measures it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from bough.evaluation.intervals import Interval, mean_interval, rate_interval
from bough.evolution.generation import Generation


@dataclass(frozen=True)
class Score:
    """A member's values by task, more being better. `lost` tasks have none: environment or engine failed there.

    With `rate`, all values are between 0 and 1. `tokens` were sampled to find them.
    """

    values: Mapping[str, float]
    rate: bool = True
    lost: int = 0
    tokens: int = 0

    @property
    def fitness(self) -> float:
        """The mean over tasks; minus infinity where nothing is known, or a value is not a number."""
        values = list(self.values.values())
        mean = math.fsum(values) / len(values) if values else -math.inf
        return -math.inf if math.isnan(mean) else mean

    def interval(self, level: float = 0.95) -> Interval | None:
        """Where the mean over all tasks of this kind may lie."""
        values = list(self.values.values())
        if not all(map(math.isfinite, values)):
            return None
        return rate_interval(values, len(values), level) if self.rate else mean_interval(values, level)

    def to_json(self) -> dict[str, Any]:
        interval = self.interval()
        fitness = self.fitness if math.isfinite(self.fitness) else None
        bounds = None if interval is None else [interval.low, interval.high]
        return {"fitness": fitness, "interval": bounds, "tasks": len(self.values), "lost": self.lost}

    def __str__(self) -> str:
        interval, digits = self.interval(), ".1%" if self.rate else ".4g"
        between = f" ({interval.low:{digits}} to {interval.high:{digits}})" if interval else ""
        return f"{self.fitness:{digits}}{between}"


def differences(worse: Score, better: Score) -> list[float]:
    """The second's values less the first's, on the tasks that both have."""
    return [better.values[task] - value for task, value in worse.values.items() if task in better.values]


def on_common_tasks(scores: Mapping[str, Score]) -> dict[str, Score]:
    """The scores on the tasks that all members have a value for: means over different tasks cannot be compared.

    A member that lost more than half of the tasks that others have is left out: nothing is known of it.
    """
    most = max(len(score.values) for score in scores.values())
    known = {name: score for name, score in scores.items() if 2 * len(score.values) >= most}
    common = set.intersection(*(set(score.values) for score in known.values()))
    return {
        name: replace(score, values={task: value for task, value in score.values.items() if task in common})
        if name in known
        else replace(score, values={})
        for name, score in scores.items()
    }


class Fitness(Protocol):
    """Measures members, all of a generation on the same records or tasks."""

    def of(self, generation: Generation) -> dict[str, Score]:
        """The scores of the members of a generation."""
        ...

    def of_winner(self, generation: Generation, name: str) -> Score:
        """The score of one member on what no member was selected on."""
        ...
