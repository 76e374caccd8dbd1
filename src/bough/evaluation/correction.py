"""Several comparisons at once: the more one looks, the more chance finds."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: below alpha together means that no one of them errs above alpha."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, highest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
