"""The one number by which trajectories are compared."""

from __future__ import annotations

from bough.rewards.rubric import TOTAL
from bough.types import Trajectory


def score(trajectory: Trajectory, name: str | None = None) -> float | None:
    """The reward called `name`. Without a name: the total, else "reward", the only one, the outcome, success.

    A reward that is listed but was not computed is None; no other one replaces it.
    """
    rewards = trajectory.rewards
    if name is not None:
        return rewards.get(name)
    for known in (TOTAL, "reward", *([next(iter(rewards))] if len(rewards) == 1 else []), "outcome"):
        if known in rewards:
            return rewards[known]
    return None if trajectory.success is None or rewards else float(trajectory.success)
