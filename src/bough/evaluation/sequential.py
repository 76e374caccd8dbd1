"""Intervals and p-values that hold at any stopping time, so that results may be looked at while they come in.

An ordinary 95% interval holds for a number of episodes fixed beforehand; looked at after
every episode until it pleases, it errs far more often than one time in twenty. A
confidence sequence holds at all times at once. Ours bets: whoever claims that the mean
is m is offered bets that are fair if it is; the claims whose bets would have made us too
rich are given up (Waudby-Smith and Ramdas, 2023). It needs nothing but values in a range,
so that it serves rates, means over attempts, and paired differences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bough.evaluation.distributions import bisect
from bough.evaluation.intervals import Floats, Interval

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
