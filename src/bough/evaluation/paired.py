"""Significance tests for two models on the same tasks.

Each task gives one difference, its mean over the attempts. Two hypotheses say that the
second model is no better:

- the outcomes are exchangeable (one model, played twice): every difference could as well
  have had the other sign. The sign-flip test is exact for it.
- the means are equal, but the models differ task by task. Differences are then skewed,
  and sign flips alone err too often; `mean_p` holds there.

`better_p` is the larger of both p-values. With one attempt per task both are McNemar's
exact test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from bough.evaluation.intervals import Floats, Interval, bisect, normal_quantile

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
    near = step <= LARGEST_DENOMINATOR and bool((np.abs(scaled - whole) <= 1e-6).all())
    return whole.astype(np.int64) if near else None


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
