"""How sure we are of one number: intervals for rates and means.

Episodes of one task are not independent: what is hard once is hard again. Everything
here therefore takes one value a task, its mean over the attempts, and the spread that
counts is the spread between tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

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


# The few distributions that intervals and tests need, exact to rounding, from `math` alone.

TINY = 1e-300
normal_quantile = NormalDist().inv_cdf


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    log_front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    # The fraction converges quickly on this side of the mean; the other side is its mirror image.
    if x < (a + 1.0) / (a + b + 2.0):
        return math.exp(log_front) * _fraction(x, a, b) / a
    return 1.0 - math.exp(log_front) * _fraction(1.0 - x, b, a) / b


def beta_quantile(probability: float, a: float, b: float) -> float:
    """Where the beta distribution's cumulative probability reaches `probability`."""
    return bisect(lambda x: beta_cdf(x, a, b) - probability, 0.0, 1.0)


@lru_cache
def student_quantile(probability: float, degrees: float) -> float:
    """Student's t, through the beta distribution of degrees / (degrees + t²)."""
    if probability < 0.5:
        return -student_quantile(1.0 - probability, degrees)
    share = beta_quantile(2.0 * (1.0 - probability), degrees / 2.0, 0.5)
    return math.sqrt(degrees * (1.0 - share) / max(share, TINY))


def bisect(rising: Callable[[float], float], low: float, high: float, tolerance: float = 0.0) -> float:
    """Where a function that rises from negative to positive crosses zero."""
    middle = (low + high) / 2.0
    while high - low > tolerance and middle not in (low, high):
        low, high = (middle, high) if rising(middle) < 0.0 else (low, middle)
        middle = (low + high) / 2.0
    return middle


def _fraction(x: float, a: float, b: float) -> float:
    """Lentz's evaluation of the incomplete beta function's continued fraction."""
    c, d = 1.0, 1.0 / _nonzero(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, 10_000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0)),
        ):
            d = 1.0 / _nonzero(1.0 + numerator * d)
            c = _nonzero(1.0 + numerator / c)
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > TINY else TINY


# Intervals and p-values that hold at any stopping time, so that results may be looked at while they come in.
# An ordinary 95% interval holds for a number of episodes fixed beforehand; looked at after every episode until it
# pleases, it errs far more often than one time in twenty. A confidence sequence holds at all times at once. Ours
# bets: whoever claims that the mean is m is offered bets that are fair if it is; the claims whose bets would have
# made us too rich are given up (Waudby-Smith and Ramdas, 2023). It needs nothing but values in a range, so that it
# serves rates, means over attempts, and paired differences.

METHOD = "confidence sequence, valid at any stopping time"
# Shares of the capital that are bet, in equal parts: small ones find small differences in long runs.
STAKES = np.geomspace(0.002, 0.995, 48)
FIRST_LOOK, GROWTH = 16, 1.25
# How exactly the ends of an interval are found.
NEAR = 1e-7


def confidence_sequence(values: Sequence[float], level: float = 0.95) -> Interval:
    """An interval for the mean of values between 0 and 1 that may be looked at after every value."""
    found, counts = np.unique(np.asarray(values, dtype=float), return_counts=True)
    limit = float(np.log(2.0 / (1.0 - level)))  # half of the error for each side
    low = bisect(lambda mean: limit - _log_capital(found, counts, mean), 0.0, 1.0, NEAR)
    high = bisect(lambda mean: _log_capital(1.0 - found, counts, 1.0 - mean) - limit, 0.0, 1.0, NEAR)
    return Interval(low if low > NEAR else 0.0, high if high < 1.0 - NEAR else 1.0, level, METHOD)


def difference_sequence(differences: Sequence[float], level: float = 0.95) -> Interval:
    """The same for paired differences, which lie between -1 and 1."""
    halves = confidence_sequence([(1.0 + difference) / 2.0 for difference in differences], level)
    return Interval(2.0 * halves.low - 1.0, 2.0 * halves.high - 1.0, level, METHOD)


def anytime_p(differences: Sequence[float], *, one_sided: bool = False) -> float:
    """A p-value for "no difference" that stays valid however the number of tasks came about.

    One-sided asks whether differences are up. Below 1 - level exactly when
    `difference_sequence` leaves out zero.
    """
    found, counts = np.unique(np.asarray(differences, dtype=float), return_counts=True)
    up = _log_capital((1.0 + found) / 2.0, counts, 0.5)
    if one_sided:
        return float(min(1.0, np.exp(-up)))
    down = _log_capital((1.0 - found) / 2.0, counts, 0.5)
    return float(min(1.0, 2.0 * np.exp(-max(up, down))))


def looks(most: int) -> Iterator[int]:
    """After how many tasks to look: each time a quarter more, so that few tasks are played needlessly."""
    look = FIRST_LOOK
    while look < most:
        yield look
        look = int(np.ceil(look * GROWTH))
    yield most


def _log_capital(values: Floats, counts: np.ndarray[Any, Any], mean: float) -> float:
    """What bets on a mean above `mean` have made of 1: a fair game exactly if `mean` is true."""
    with np.errstate(divide="ignore", over="ignore"):
        logs = np.log1p(STAKES[:, None] * (values / max(mean, 1e-300) - 1.0)) @ counts
    top = float(logs.max())
    return top + float(np.log(np.mean(np.exp(logs - top)))) if np.isfinite(top) else top
