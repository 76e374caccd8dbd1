"""DAPO's soft punishment of answers that near the limit (2503.14476, equation 13)."""

from __future__ import annotations

from bough.types import Trajectory


def overlong(
    trajectory: Trajectory, *, max_length: int = 10480, buffer: int = 3000, factor: float = 1.0
) -> float | None:
    """0 up to `max_length − buffer` written tokens, then falling evenly to −`factor` at `max_length`.

    None where the number of tokens is not known.
    """
    length = num_written_tokens(trajectory)
    if length is None:
        return None
    return -factor * min(1.0, max(0.0, (length - (max_length - buffer)) / buffer))


def num_written_tokens(trajectory: Trajectory) -> int | None:
    """The tokens that the agent wrote: its calls', else as counted when it was played."""
    calls = [turn.call for turn in trajectory.turns]
    if calls and all(calls):
        return sum(len(call.completion_ids) for call in calls if call is not None)
    counted = trajectory.info.get("completion_tokens")
    # An expert's episode is recorded with 0 tokens although it wrote something.
    return counted if isinstance(counted, int) and not isinstance(counted, bool) and counted > 0 else None
