"""Several attempts at one task: is one of k good enough (pass@k), are all of k good (pass^k)?

Both are estimated from all attempts there are, without bias: over every choice of k of
them, the share in which one, or all, succeed.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import comb


def pass_at(k: int, successes: int, attempts: int) -> float:
    """The chance that at least one of `k` attempts succeeds."""
    return 1.0 - comb(attempts - successes, k) / comb(attempts, k)


def pass_all(k: int, successes: int, attempts: int) -> float:
    """The chance that `k` attempts all succeed."""
    return comb(successes, k) / comb(attempts, k)


def ladder(attempts: Iterable[int]) -> list[int]:
    """Which k to report: 2, 4, 8, … up to the number of attempts that every task has, and that number itself."""
    most = min(attempts, default=0)
    return sorted({*(2**power for power in range(1, most.bit_length())), most}) if most > 1 else []
