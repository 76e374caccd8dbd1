"""Whether the agent wrote as it was asked to."""

from __future__ import annotations

from bough.rewards.bounds import bounded
from bough.types import Trajectory

# A well-formed reply that asks for the impossible ("invalid_action") is no matter of form.
FORM_ERRORS = ("malformed", "tool_misuse")


@bounded(0.0, 1.0)
def format(trajectory: Trajectory) -> float | None:
    """The share of replies in the agreed form; None where there is no reply."""
    if not trajectory.turns:
        return None
    return sum(turn.error not in FORM_ERRORS for turn in trajectory.turns) / len(trajectory.turns)
