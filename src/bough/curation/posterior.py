"""Success rates of a few plays as Beta posteriors under a uniform prior."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, lgamma


@dataclass(frozen=True)
class Rate:
    """`successes` out of `plays`."""

    successes: int
    plays: int

    @property
    def mean(self) -> float:
        """The expected success rate: (s + 1) / (n + 2)."""
        return (self.successes + 1) / (self.plays + 2)

    def __add__(self, other: Rate) -> Rate:
        return Rate(self.successes + other.successes, self.plays + other.plays)


def probability_better(left: Rate, right: Rate) -> float:
    """The probability that the true rate of `left` is higher than that of `right`.

    Exact for Beta(a, b) = (s + 1, n − s + 1) on both sides:

        P = Σ_{i < a_left} B(a_right + i, b_left + b_right) / ((b_left + i) · B(1 + i, b_left) · B(a_right, b_right))
    """
    a, b = left.successes + 1, left.plays - left.successes + 1
    c, d = right.successes + 1, right.plays - right.successes + 1
    terms = (exp(_log_beta(c + i, b + d) - _log_beta(1 + i, b) - _log_beta(c, d)) / (b + i) for i in range(a))
    return min(1.0, sum(terms))


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
