"""Rounds: which turns of which trajectories are worth looking into."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp
from random import Random

from bough.curation.source import SourcedTrajectory
from bough.types import Turn

REASON = "counterfactual"


@dataclass(frozen=True)
class Round:
    """One turn of a trajectory, and why it is looked into."""

    item: SourcedTrajectory
    at: int
    reason: str = REASON


def telling_rounds(filed: Iterable[SourcedTrajectory], count: int, seed: int) -> list[Round]:
    """At most `count` rounds of each trajectory whose outcome is known, drawn where there was most to choose.

    That is where the model would likely have said something else: a round's weight is one
    minus the probability of the reply it gave, where that is on file.
    """
    found = []
    for item in filed:
        trajectory = item.trajectory
        if trajectory.success is None:
            continue
        rng = Random(f"{seed} {trajectory.id}")  # noqa: S311  no secret
        # Weighted sampling without replacement: the largest of u ** (1 / weight) (Efraimidis and Spirakis).
        keys = {at: rng.random() ** (1 / max(_openness(turn), 1e-6)) for at, turn in enumerate(trajectory.turns)}
        drawn = sorted(keys, key=lambda at: keys[at], reverse=True)[:count]
        found += [Round(item, at) for at in sorted(drawn)]
    return found


def _openness(turn: Turn) -> float:
    """How likely another draw would have been another reply."""
    if turn.call is None or turn.call.logprobs is None:
        return 1.0
    return 1 - exp(min(0.0, sum(turn.call.logprobs)))
