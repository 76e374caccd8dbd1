"""Several data files that members learn from, each with a weight: how a batch is put together from them.

    --mixture own=own.jsonl expert=demos.jsonl --mixture-weights expert=2 --mutate mixture.expert=0.5..4

A member has its own weights. Its records come from the files in proportion to them, spread as evenly
as the weights allow. Nothing is drawn at random, so a run that resumes finds its place by counting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bough.evolution.settings import EvolveConfig

# How the weight of a file is named among the settings that mutate: mixture.expert.
FILE = "mixture."


def file_weights(config: EvolveConfig, own: Mapping[str, Any]) -> dict[str, float]:
    """The weights of the files for a member whose own values are `own`; 1 where none is given."""
    given = config.mixture_weights
    return {name: float(own.get(FILE + name, given.get(name, 1.0))) for name in config.mixture}


def mixture_problems(config: EvolveConfig) -> Iterator[str]:
    """What is wrong with the files and their weights."""
    if not config.mixture:
        if config.mixture_weights:
            yield "mixture_weights needs mixture, the files that have these weights"
        return
    if config.method == "grpo":
        yield "grpo learns from what members play; leave out mixture"
    elif config.train_file is not None:
        yield "give either train_file or mixture, not both"
    if len(config.mixture) < 2:
        yield "a mixture has at least two files; give a single one as train_file"
    if wrong := [name for name in config.mixture if not name.isidentifier()]:
        yield f"mixture: {', '.join(wrong)} cannot be the name of a file; use letters, digits and _"
    if unknown := [name for name in config.mixture_weights if name not in config.mixture]:
        known = ", ".join(config.mixture)
        yield f"mixture_weights: {', '.join(unknown)} is not a file of the mixture; files are {known}"
    if not any(file_weights(config, {}).values()):
        yield "mixture_weights: at least one must be above 0"


class Mixer:
    """Which file each record of a member comes from: always the one that is furthest behind its share."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        total = sum(weights.values())
        self.shares = {name: weight / total for name, weight in weights.items() if weight > 0}
        self._taken = dict.fromkeys(self.shares, 0)
        self._picks: list[tuple[str, int]] = []

    def picks(self, begin: int, end: int) -> Sequence[tuple[str, int]]:
        """For the records from `begin` to `end` of a member: the file, and how many came from it before."""
        while len(self._picks) < end:
            wanted = len(self._picks) + 1
            name = max(self.shares, key=lambda one: self.shares[one] * wanted - self._taken[one])
            self._picks.append((name, self._taken[name]))
            self._taken[name] += 1
        return self._picks[begin:end]
