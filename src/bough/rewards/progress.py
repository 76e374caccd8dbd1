"""How much of the task was done at the end."""

from __future__ import annotations

from bough.rewards.bounds import bounded
from bough.types import Trajectory


@bounded(0.0, 1.0)
def progress(trajectory: Trajectory) -> float | None:
    """The last progress the world told, 0 to 1; a success is 1. None where the world never tells.

    The last, not the highest: what was undone again does not count.
    """
    if trajectory.success:
        return 1.0
    return next((turn.progress for turn in reversed(trajectory.turns) if turn.progress is not None), None)
