"""How sure we are of a number: intervals for rates and means, and tests of differences.

Episodes of one task are not independent: what is hard once is hard again. Everything
here therefore takes one value a task, its mean over the attempts, and the spread that
counts is the spread between tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
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
    if episodes <= tasks or tasks == 1:  # one task says nothing about the spread between tasks
        return Interval(*wilson(rate * tasks, tasks, level), level, "Wilson")
    spread = math.fsum((value - rate) ** 2 for value in values) / (tasks - 1)
    # Where all tasks are alike at 0 or 1, nothing says that further attempts add anything to a task's first.
    alike = tasks if rate in (0.0, 1.0) else episodes
    effective = rate * (1.0 - rate) * tasks / spread if spread > 0.0 else alike
    effective = min(max(effective, tasks), episodes)
    critical = student_quantile(0.5 + level / 2.0, tasks - 1)
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


# Significance tests for two models on the same tasks.
# Each task gives one difference, its mean over the attempts. Two hypotheses say that the second model is no better.
# The outcomes are exchangeable (one model, played twice): the sign-flip test is exact for it. The means are equal, but
# the models differ task by task: differences are then skewed, and sign flips alone err too often; `mean_p` holds there.
# `better_p` is the larger of both p-values. With one attempt per task both are McNemar's exact test.

# Up to here every flip is counted; beyond, draws stand for all.
EXACT_WORK = 50_000_000
ENUMERATED = 14
DRAWS = 20_000
RESAMPLES = 10_000
# Numbers that one round of resampling holds in memory.
CHUNK = 4_000_000
LARGEST_DENOMINATOR = 10_000
# The worst difference between two rates.
WORST = -1.0
# Nodes and weights of an integral from 0 to infinity, t = u / (1 - u).
_U, _WEIGHTS = np.polynomial.legendre.leggauss(256)
_U, _WEIGHTS = (1.0 + _U) / 2.0, _WEIGHTS / 2.0
_T, _WEIGHTS = _U / (1.0 - _U), _WEIGHTS / (1.0 - _U) ** 2


def better_p(differences: Sequence[float]) -> float:
    """The one-sided p-value of "the second is no better", from differences between two rates."""
    flips = sign_flip(differences, one_sided=True)
    one_attempt = all(difference in (-1.0, 0.0, 1.0) for difference in differences)
    return flips if one_attempt else max(flips, mean_p(differences))


def mean_p(differences: Sequence[float]) -> float:
    """The one-sided p-value of "the mean is at most zero", for independent differences of at least -1.

    Gaffke's test (2005; Learned-Miller and Thomas, 2020). It assumes nothing about how the
    differences spread. A sample says little about losses that are rare and large, so the test
    adds one more difference, the worst possible, and asks how often random weights (uniform
    over all ways to divide 1 among the differences) make the weighted mean zero or less.

    Uniform weights are independent exponential variables divided by their sum, so that
    the p-value is the probability that Σ Eᵢ·dᵢ ≤ E₀. It is computed by inverting the
    transform of that sum along the line through its saddle point: no draws, and the same
    digits each time.
    """
    if max(differences, default=0.0) <= 0.0:
        return 1.0
    distinct, counts = np.unique([*differences, WORST], return_counts=True)

    def slope(s: float) -> float:
        return float((counts * distinct / (1.0 - s * distinct)).sum()) - 1.0 / s

    saddle = bisect(slope, 1.0 / float(distinct[0]), 0.0, 1e-8)
    curvature = float((counts * (distinct / (1.0 - saddle * distinct)) ** 2).sum()) + 1.0 / saddle**2
    scale = 3.0 / math.sqrt(curvature)
    line = saddle + 1j * scale * _T
    logs = -counts @ np.log(1.0 - np.outer(distinct, line)) - np.log(-line)
    return min(1.0, float(np.exp(logs).real @ _WEIGHTS) * scale / math.pi)


def sign_flip(differences: Sequence[float], *, one_sided: bool = False, seed: int = 0) -> float:
    """The p-value of the hypothesis that differences are as often up as down.

    One-sided asks whether they are up. Exact where it can be; otherwise from random
    flips, counted so that the p-value is never too small.
    """
    found = np.asarray([difference for difference in differences if difference], dtype=float)
    if not len(found):
        return 1.0
    steps = _whole_numbers(found)
    if steps is not None and len(steps) * (2 * int(np.abs(steps).sum()) + 1) <= EXACT_WORK:
        return _exact(steps, one_sided)
    if len(found) <= ENUMERATED:
        signs = 1 - 2 * ((np.arange(2 ** len(found))[:, None] >> np.arange(len(found))) & 1)
        return float(_as_large(signs @ np.abs(found), found, one_sided).mean())
    rng, as_large, size = np.random.default_rng(seed), 1, 1_000
    for _ in range(DRAWS // size):
        signs = rng.integers(0, 2, size=(size, len(found))) * 2 - 1
        as_large += int(_as_large(signs @ found, found, one_sided).sum())
    return as_large / (DRAWS + 1)


def difference_interval(differences: Sequence[float], level: float = 0.95, seed: int = 0) -> Interval | None:
    """A paired bootstrap interval for the mean difference between two rates, one value a task.

    The resamples are of two tasks more than there are: half a gain, half a loss and a
    draw (Agresti and Min, 2005). Without them, few tasks that differ give far too much
    certainty: none at all would give an interval of no width.
    """
    if not differences:
        return None
    distinct, counts = np.unique([*differences, -1.0, 0.0, 1.0], return_counts=True)
    weights = counts - np.isin(distinct, [-1.0, 0.0, 1.0]) + np.where(distinct == 0.0, 1.0, 0.0)
    weights += np.where(np.abs(distinct) == 1.0, 0.5, 0.0)
    size = len(differences) + 2
    # Drawn as counts of each distinct value, of which there are mostly few.
    rng, at_once = np.random.default_rng(seed), max(1, CHUNK // len(distinct))
    rounds = [min(at_once, RESAMPLES - start) for start in range(0, RESAMPLES, at_once)]
    means = np.concatenate([rng.multinomial(size, weights / size, size=count) @ distinct / size for count in rounds])
    low, high = np.quantile(means, [0.5 - level / 2.0, 0.5 + level / 2.0])
    return Interval(float(low), float(high), level, "paired bootstrap over tasks, two tasks added (Agresti-Min)")


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given.

    Each is compared with alpha; the probability of any false positive among them is at most alpha.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, highest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def _whole_numbers(values: Floats) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """The same values as multiples of a common step, None where there is no sensible one."""
    step = math.lcm(*(_denominator(value) for value in set(values.tolist())))
    scaled = values * step
    whole = np.rint(scaled)
    near = np.abs(scaled - whole) <= 1e-6 * np.minimum(1.0, np.abs(scaled))
    small = step <= LARGEST_DENOMINATOR and bool((np.abs(scaled) < 1 << 53).all())
    return whole.astype(np.int64) if small and bool(near.all()) else None


@lru_cache(maxsize=1024)  # means of a few attempts are few numbers
def _denominator(value: float) -> int:
    return Fraction(value).limit_denominator(LARGEST_DENOMINATOR).denominator


def _exact(steps: np.ndarray[Any, np.dtype[np.int64]], one_sided: bool) -> float:
    """The share of all sign flips whose sum is as large, from the whole distribution of that sum."""
    total = int(np.abs(steps).sum())
    chances = np.ones(1)  # of every sum of the steps so far
    for step in np.abs(steps).tolist():
        wider = np.zeros(len(chances) + 2 * step)
        wider[2 * step :] = chances
        wider[: len(chances)] += chances
        chances = wider / 2.0
    seen = int(steps.sum())
    up = float(chances[total + (seen if one_sided else abs(seen)) :].sum())
    return min(1.0, up if one_sided else 2.0 * up)


def _as_large(sums: Floats, values: Floats, one_sided: bool) -> np.ndarray[Any, np.dtype[np.bool_]]:
    seen, slack = float(values.sum()), 1e-9 * float(np.abs(values).sum())
    found: np.ndarray[Any, np.dtype[np.bool_]] = (
        sums >= seen - slack if one_sided else np.abs(sums) >= abs(seen) - slack
    )
    return found


# How many episodes would settle it, and how small a difference these could have shown.

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
    detectable = None
    if tasks_needed(1.0, 1.0, alpha) <= count:
        # No difference is larger than the share of tasks that differ.
        detectable = bisect(lambda size: count - tasks_needed(size, max(square, size), alpha), 1e-9, 1.0, 1e-6)
    return Outlook(math.ceil(tasks_needed(abs(mean), square, alpha)) if mean else None, detectable)


def tasks_needed(difference: float, square: float, alpha: float = 0.05, power: float = POWER) -> float:
    """Tasks for a paired two-sided test to find `difference`; `square` is the mean squared difference a task.

    With one attempt a task `square` is the share of tasks that only one of the two
    solves, and this is Connor's formula for McNemar's test with a continuity correction.
    """
    by_chance, by_truth = normal_quantile(1.0 - alpha / 2.0), normal_quantile(power)
    square = max(square, difference * difference, 1e-12)
    root = by_chance * math.sqrt(square) + by_truth * math.sqrt(max(0.0, square - difference * difference))
    needed = (root / difference) ** 2
    return needed / 4.0 * (1.0 + math.sqrt(1.0 + 4.0 / (needed * difference))) ** 2
