"""Rounds: the turns of trajectories at which other replies are tried."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp
from random import Random

from bough.curation.source import SourcedTrajectory
from bough.types import Turn

COUNTERFACTUAL = "counterfactual"


@dataclass(frozen=True)
class Round:
    """One turn of a trajectory, and why other replies are tried there."""

    item: SourcedTrajectory
    at: int
    reason: str = COUNTERFACTUAL


def sample_rounds(filed: Iterable[SourcedTrajectory], count: int, seed: int) -> list[Round]:
    """At most `count` rounds of each trajectory whose outcome is known, sampled where the model was least certain.

    A round's weight is one minus the probability of the recorded reply, where its
    log-probabilities are known.
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
    """The probability that another sample would have been another reply."""
    if turn.call is None or turn.call.logprobs is None:
        return 1.0
    return 1 - exp(min(0.0, sum(turn.call.logprobs)))
