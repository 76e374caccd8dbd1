"""What the world itself said of an episode."""

from __future__ import annotations

from bough.types import Trajectory


def outcome(trajectory: Trajectory, *, failure: float | None = None) -> float | None:
    """The recorded outcome, else success as 1 or 0; None where neither is known.

    `failure` is what a failure without any gain is worth, where the world says 0: with
    −1, as GRPO-TCR has it, a wrong answer stands as far below 0 as a right one above.
    """
    score = trajectory.rewards.get("outcome")
    if score is None:
        if trajectory.success is None:
            return None
        score = float(trajectory.success)
    return failure if failure is not None and trajectory.success is False and score <= 0 else score
