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

RESAMPLES = 10_000
# Numbers that one round of resampling holds in memory.
CHUNK = 4_000_000

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


def mean_interval(values: Sequence[float], level: float = 0.95, seed: int = 0) -> Interval | None:
    """A bias-corrected and accelerated bootstrap interval for the mean of one value a task.

    None where all values are alike: then nothing tells how they spread.
    """
    if len(set(values)) < 2:
        return None
    found = np.asarray(values, dtype=float)
    mean = float(found.mean())
    distinct, counts = np.unique(found, return_counts=True)
    means = resampled_means(distinct, counts / len(found), len(found), seed)
    # The half of the ties belongs to each side: success counts are discrete.
    below = (np.count_nonzero(means < mean) + np.count_nonzero(means == mean) / 2.0) / len(means)
    shift = normal_quantile(min(max(below, 0.5 / len(means)), 1.0 - 0.5 / len(means)))
    gaps = found - mean
    skew = float((gaps**3).sum() / (6.0 * (gaps**2).sum() ** 1.5))
    ends = []
    for side in (0.5 - level / 2.0, 0.5 + level / 2.0):
        moved = shift + normal_quantile(side)
        ends.append(_normal_cdf(shift + moved / max(1.0 - skew * moved, 1e-9)))
    low, high = np.quantile(means, ends)
    return Interval(float(low), float(high), level, "bootstrap over tasks (BCa)")


def resampled_means(distinct: Floats, shares: Floats, size: int, seed: int) -> Floats:
    """Means of resamples of `size`, drawn as counts of each distinct value, of which there are mostly few."""
    rng = np.random.default_rng(seed)
    at_once = max(1, CHUNK // len(distinct))
    rounds = [min(at_once, RESAMPLES - start) for start in range(0, RESAMPLES, at_once)]
    return np.concatenate([rng.multinomial(size, shares, size=count) @ distinct / size for count in rounds])


def _normal_cdf(value: float) -> float:
    return 0.5 * math.erfc(-value / math.sqrt(2.0))
