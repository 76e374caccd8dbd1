"""The metrics of a batch that was played."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from bough.methods.grpo import GroupExample
from bough.policy.policy import Policy
from bough.rewards.score import score
from bough.rollouts.rescore import sampled_calls
from bough.types import Call, Group, Trajectory

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


def distances(policy: Policy, groups: Sequence[Group], examples: Sequence[GroupExample]) -> dict[str, float]:
    """Between sampler and trainer, and between the policy and its start, on a few calls.

    What the policy says of them is computed only if the examples do not have it.
    """
    members: list[Trajectory] = [attempt for group in groups for attempt in group.attempts]
    calls = sampled_calls(members, CALLS_MEASURED)
    if not calls:
        return {}
    now = torch.cat(_known(calls, examples) or _logprobs(policy, calls))
    sampled = torch.tensor([value for call in calls for value in call.logprobs or ()])
    found = {"logprob_gap_max": float((now - sampled).abs().max()), "entropy": float(-now.mean())}
    if policy.has_adapter:
        with policy.reference():
            start = torch.cat(_logprobs(policy, calls))
        ratio = start - now
        found["start_kl"] = float((ratio.exp() - ratio - 1).mean())
    return found


def _known(calls: Sequence[Call], examples: Sequence[GroupExample]) -> list[Tensor] | None:
    """The policy's log-probabilities of these calls as the examples have them; None if one is missing."""
    known = {
        _content(call): logprobs
        for example in examples
        for call, logprobs in zip(example.calls, example.old_logprobs, strict=False)  # all of them, or none
    }
    found = [known[content] for call in calls if (content := _content(call)) in known]
    return found if len(found) == len(calls) else None


def _content(call: Call) -> tuple[object, ...]:
    """What its log-probabilities depend on."""
    return tuple(call.prompt_ids), tuple(call.completion_ids), call.sampled_at


@torch.no_grad()
def _logprobs(policy: Policy, calls: Sequence[Call]) -> list[Tensor]:
    return [values.cpu() for values in policy.logprobs(calls)]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
