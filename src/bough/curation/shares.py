"""Limits on pairs per reason: a maximum number, and a maximum share of all pairs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import floor, inf
from random import Random

from bough.ledger import Ledger
from bough.types import Pair


def balanced(
    pairs: Sequence[Pair],
    caps: Mapping[str, int],
    shares: Mapping[str, float],
    ledger: Ledger,
    *,
    seed: int,
) -> list[Pair]:
    """The pairs within caps and shares, sampled by `seed`, in their original order."""
    counts = Counter(str(pair.reason) for pair in pairs)
    capped = {reason: min(count, caps.get(reason, count)) for reason, count in counts.items()}
    allowed = _within(capped, shares)
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, pair in enumerate(pairs):
        places[str(pair.reason)].append(place)
    kept: set[int] = set()
    for reason, of_reason in places.items():
        Random(f"{seed} {reason}").shuffle(of_reason)  # noqa: S311  no secret
        kept |= set(of_reason[: allowed[reason]])
        if cut := counts[reason] - capped[reason]:
            ledger.drop(f"{reason}_over_its_cap", cut)
        if cut := capped[reason] - allowed[reason]:
            ledger.drop(f"{reason}_over_its_share", cut)
    ledger.keep(len(kept))
    return [pair for place, pair in enumerate(pairs) if place in kept]


def _within(counts: Mapping[str, int], shares: Mapping[str, float]) -> dict[str, int]:
    """The largest counts such that no reason has more than its share of the remaining pairs.

    Each cut reduces the total and with it the other limits, so it is repeated until nothing
    changes. Counts stay fractions until the end, so that rounding errors do not add up. Every
    reason keeps at least one pair.
    """
    if counts and all(reason in shares for reason in counts):
        # If every reason has a share and they add up to less than 1, they are relative.
        whole = min(1.0, sum(shares[reason] for reason in counts))
        shares = {reason: shares[reason] / whole for reason in counts}
    total, before = float(sum(counts.values())), inf
    allowed: dict[str, float] = dict(counts)
    while before - total > 1e-9:
        allowed = {reason: min(count, shares.get(reason, 1.0) * total) for reason, count in counts.items()}
        before, total = total, sum(allowed.values())
    return {reason: min(counts[reason], max(1, floor(most + 1e-6))) for reason, most in allowed.items()}
