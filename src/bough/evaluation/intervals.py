"""How sure we are of one number: intervals for rates and means.

Episodes of one task are not independent: what is hard once is hard again. Everything
here therefore takes one value a task, its mean over the attempts, and the spread that
counts is the spread between tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bough.evaluation.distributions import normal_quantile, student_quantile

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Interval:
    """From `low` to `high`; `method` says in words how it was made."""

    low: float
    high: float
    level: float
    method: str

    @property
    def width(self) -> float:
        return self.high - self.low

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def wilson(successes: float, trials: float, level: float = 0.95, critical: float | None = None) -> tuple[float, float]:
    """Wilson's score interval. `critical` stands in for the normal quantile."""
    z = normal_quantile(0.5 + level / 2.0) if critical is None else critical
    rate, extra = successes / trials, z * z / trials
    centre = (rate + extra / 2.0) / (1.0 + extra)
    half = z * math.sqrt(rate * (1.0 - rate) / trials + extra / (4.0 * trials)) / (1.0 + extra)
    # At the ends the formula is exact but for rounding, which must not leave them out.
    low = 0.0 if successes <= 0 else max(0.0, centre - half)
    high = 1.0 if successes >= trials else min(1.0, centre + half)
    return low, high


def rate_interval(values: Sequence[float], episodes: int, level: float = 0.95) -> Interval | None:
    """An interval for the mean of values between 0 and 1, one a task, that `episodes` episodes gave.

    With one attempt a task it is Wilson's. With more, Wilson's for as many independent
    episodes as would have shown the same spread between tasks, with Student's t because
    that spread is itself an estimate.
    """
    tasks = len(values)
    if not tasks:
        return None
    rate = math.fsum(values) / tasks
    if episodes <= tasks:
        return Interval(*wilson(rate * tasks, tasks, level), level, "Wilson")
    spread = math.fsum((value - rate) ** 2 for value in values) / (tasks - 1) if tasks > 1 else 0.0
    # Where all tasks are alike at 0 or 1, nothing says that further attempts add anything to a task's first.
    alike = tasks if rate in (0.0, 1.0) else episodes
    effective = rate * (1.0 - rate) * tasks / spread if spread > 0.0 else alike
    effective = min(max(effective, tasks), episodes)
    critical = student_quantile(0.5 + level / 2.0, tasks - 1) if tasks > 1 else None
    low, high = wilson(rate * effective, effective, level, critical)
    return Interval(low, high, level, "Wilson, attempts clustered by task")


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval | None:
    """An interval for the mean of one value a task, whose range is not known.

    Student's t, once for the values and once with the smallest and the largest counted twice,
    from the lower end to the upper end of both. The second is what Agresti and Coull do for
    rates: without it, values that are rarely other than the rest (0.9 of all rewards are 1)
    are covered 88 times in 100 at 95%. None where all values are alike: then nothing tells
    how they spread.
    """
    if len(set(values)) < 2:
        return None
    critical = student_quantile(0.5 + level / 2.0, len(values) - 1)
    ends = []
    for some in (values, [*values, min(values), max(values)]):
        mean = math.fsum(some) / len(some)
        spread = math.fsum((value - mean) ** 2 for value in some) / (len(some) - 1)
        half = critical * math.sqrt(spread / len(some))
        ends += [mean - half, mean + half]
    return Interval(min(ends), max(ends), level, "Student's t over tasks")
