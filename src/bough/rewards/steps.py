"""The shorter way is better."""

from __future__ import annotations

from bough.rewards.bounds import bounded
from bough.types import Trajectory


@bounded(0.0, 1.0)
def steps(trajectory: Trajectory, *, max_turns: int = 50) -> float | None:
    """1 for a success in one turn, less by 1/`max_turns` for each further one, never below 0.

    A failure has 0, however short: else it would pay to give up early. None where success
    is not known.
    """
    if trajectory.success is None:
        return None
    return max(0.0, 1 - (len(trajectory.turns) - 1) / max_turns) if trajectory.success else 0.0
