"""How far the sampler's log-probabilities are from the trainer's, measured on calls that were just played.

The two compute the same numbers in other ways (a cache against a whole row, often in
bfloat16); what is left between them is what importance sampling has to make good.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from bough.rollouts.episode import Agent, ModelAgent
from bough.types import Call, Trajectory

if TYPE_CHECKING:
    from bough.policy.policy import Policy


@dataclass(frozen=True)
class Rescored:
    """The trainer's log-probabilities of sampled replies, by episode and turn, and the gap in numbers."""

    logprobs: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)


def rescore(agent: Agent, trajectories: Iterable[Trajectory], count: int) -> Rescored:
    """Asks again for up to `count` calls; nothing where no model in this process played, or none are wanted."""
    engine = agent.engine if isinstance(agent, ModelAgent) else None
    policy: Policy | None = getattr(engine, "scorer", None)
    chosen = _spread(trajectories, count)
    if policy is None or not chosen:
        return Rescored()
    import torch

    with torch.no_grad():
        found = [values.tolist() for values in policy.logprobs([call for _, _, call in chosen])]
    by_episode: dict[str, dict[int, list[float]]] = {}
    gaps: list[float] = []
    for (episode, turn, call), values in zip(chosen, found, strict=True):
        by_episode.setdefault(episode, {})[turn] = values
        gaps += [abs(new - old) for new, old in zip(values, call.logprobs or (), strict=True)]
    mean, largest = math.fsum(gaps) / len(gaps), max(gaps)
    numbers = {"rescored_tokens": len(gaps), "logprob_gap_mean": mean, "logprob_gap_max": largest}
    return Rescored(by_episode, numbers)


def sampled_calls(trajectories: Iterable[Trajectory], count: int) -> list[Call]:
    """Up to `count` calls with sampled log-probabilities, spread evenly over the episodes."""
    return [call for _, _, call in _spread(trajectories, count)]


def _spread(trajectories: Iterable[Trajectory], count: int) -> list[tuple[str, int, Call]]:
    """Goes through the trajectories twice, so that only what is chosen is held in memory."""
    total = sum(1 for _ in _calls(trajectories)) if count > 0 else 0
    return list(islice(_calls(trajectories), 0, None, max(1, total // count)))[:count] if total else []


def _calls(trajectories: Iterable[Trajectory]) -> Iterator[tuple[str, int, Call]]:
    for trajectory in trajectories:
        for number, turn in enumerate(trajectory.turns):
            if turn.call is not None and turn.call.logprobs and turn.call.completion_ids:
                yield trajectory.id, number, turn.call
