"""How many pairs of each reason: caps as counts, and the largest share of the whole."""

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
    """The pairs that caps and shares leave, drawn by `seed`, in the order they came in."""
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
    """The most of each reason such that none has more than its share of what is left in all.

    Each cut makes the whole smaller and with it the others' shares, until nothing changes;
    fractions are kept on the way, or roundings would feed on each other. One is always left.
    """
    if counts and all(reason in shares for reason in counts):
        # Shares of everything there is that do not fill the whole are meant in proportion.
        whole = min(1.0, sum(shares[reason] for reason in counts))
        shares = {reason: shares[reason] / whole for reason in counts}
    total, before = float(sum(counts.values())), inf
    allowed: dict[str, float] = dict(counts)
    while before - total > 1e-9:
        allowed = {reason: min(count, shares.get(reason, 1.0) * total) for reason, count in counts.items()}
        before, total = total, sum(allowed.values())
    return {reason: min(counts[reason], max(1, floor(most + 1e-6))) for reason, most in allowed.items()}
