"""How far the sampler's log-probabilities are from the trainer's, measured on calls that were just played.

The two compute the same numbers in other ways (a cache against a whole row, often in
bfloat16); what is left between them is what importance sampling has to make good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bough.rollouts.agents import Agent, ModelAgent
from bough.types import Call, Trajectory

if TYPE_CHECKING:
    from bough.training.policy import Policy


def rescore(agent: Agent, trajectories: list[Trajectory], count: int) -> dict[str, Any]:
    """The gap on up to `count` calls; nothing where no model in this process played, or none are wanted."""
    engine = agent.engine if isinstance(agent, ModelAgent) else None
    policy: Policy | None = getattr(engine, "scorer", None)
    calls = sampled_calls(trajectories, count)
    return logprob_gap(policy, calls) if policy is not None and calls else {}


def sampled_calls(trajectories: list[Trajectory], count: int) -> list[Call]:
    """Up to `count` calls with sampled log-probabilities, spread evenly over the episodes."""
    calls = [
        turn.call
        for trajectory in trajectories
        for turn in trajectory.turns
        if turn.call is not None and turn.call.logprobs and turn.call.completion_ids
    ]
    if count <= 0 or not calls:
        return []
    step = max(1, len(calls) // count)
    return calls[::step][:count]


def logprob_gap(policy: Policy, calls: list[Call]) -> dict[str, Any]:
    """The mean and the largest absolute difference over the answered tokens of `calls`, which were sampled."""
    import torch

    with torch.no_grad():
        found = policy.logprobs(calls)
    sampled = torch.tensor([value for call in calls for value in call.logprobs or ()])
    gaps = (torch.cat([values.cpu() for values in found]) - sampled).abs()
    return {
        "rescored_tokens": int(gaps.numel()),
        "logprob_gap_mean": float(gaps.mean()),
        "logprob_gap_max": float(gaps.max()),
    }
