"""The few distributions that intervals and tests need, exact to rounding, from `math` alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

TINY = 1e-300


def normal_quantile(probability: float) -> float:
    return NormalDist().inv_cdf(probability)


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
