"""The metrics of a batch that was played."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import torch

from bough.policy.policy import Policy
from bough.rewards.score import score
from bough.rollouts.rescore import sampled_calls
from bough.types import Group, Trajectory

# Calls whose distance from sampler and start policy is measured in each batch.
CALLS_MEASURED = 8


def batch_metrics(groups: Sequence[Group], played: Sequence[Group], reward: str | None) -> dict[str, Any]:
    """Metrics of the groups of a batch, and of all that were `played` to find them.

    Reward and success are of all: without the tasks that always or never succeed any policy looks middling.
    """
    everyone = [attempt for group in played for attempt in group.attempts]
    members = [attempt for group in groups for attempt in group.attempts]
    turns = [turn for attempt in members for turn in attempt.turns]
    values = {
        "episodes": len(everyone),
        "reward": _mean(score(attempt, reward) for attempt in everyone),
        "success": _mean(attempt.success for attempt in everyone),
        "turns": _mean(len(attempt.turns) for attempt in members),
        "reply_tokens": _mean(len(turn.call.completion_ids) for turn in turns if turn.call),
        "errors": _mean(turn.error is not None for turn in turns),
    }
    for name in sorted({name for attempt in everyone for name in attempt.rewards}):
        values[f"reward/{name}"] = _mean(attempt.rewards.get(name) for attempt in everyone)
    return {name: value for name, value in values.items() if value is not None}


def distances(policy: Policy, groups: Sequence[Group]) -> dict[str, float]:
    """Between sampler and trainer, and between the policy and its start, on a few calls."""
    members: list[Trajectory] = [attempt for group in groups for attempt in group.attempts]
    calls = sampled_calls(members, CALLS_MEASURED)
    if not calls:
        return {}
    with torch.no_grad():
        now = torch.cat([values.cpu() for values in policy.logprobs(calls)])
    sampled = torch.tensor([value for call in calls for value in call.logprobs or ()])
    found = {"logprob_gap_max": float((now - sampled).abs().max()), "entropy": float(-now.mean())}
    if policy.has_adapter:
        with torch.no_grad(), policy.reference():
            start = torch.cat([values.cpu() for values in policy.logprobs(calls)])
        ratio = start - now
        found["start_kl"] = float((ratio.exp() - ratio - 1).mean())
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
