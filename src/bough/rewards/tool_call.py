"""GRPO-TCR's tool-call reward: a wrong answer is less wrong if tools were used on the way.

With a score of −1 for a wrong answer the sum of both is −1.0 without a call, −0.9, −0.8,
−0.7, and −0.6 from four calls on. A right answer is worth the same with and without.
"""

from __future__ import annotations

from bough.rewards.outcome import outcome
from bough.types import Trajectory


def tool_call(
    trajectory: Trajectory, *, per_call: float = 0.1, ceiling: float = -0.6, failure: float | None = None
) -> float | None:
    """What is added to a score below 0: `per_call` for each turn with a call that ran, up to `ceiling`.

    A call that ran has a tool's answer and no error; turns without one earn nothing.
    `failure` as in `outcome`. None where the outcome is not known.
    """
    score = outcome(trajectory, failure=failure)
    if score is None:
        return None
    # A score already above the ceiling must not be pulled down to it.
    return max(0.0, min(ceiling - score, per_call * num_calls_that_ran(trajectory))) if score < 0 else 0.0


def num_calls_that_ran(trajectory: Trajectory) -> int:
    """How many turns used a tool that answered."""
    return sum(
        turn.error is None and any(message.role == "tool" for message in turn.observation) for turn in trajectory.turns
    )
