"""What a reward can be at least and at most, said where it is written.

    @bounded(0.0, 1.0)
    def brevity(trajectory: Trajectory) -> float: ...

A reward that leaves its bounds is a mistake of its author or a cheat that worked; either
way nothing should be trained on it, so the run stops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
Bounds = tuple[float, float]


def bounded(low: float, high: float) -> Callable[[Function], Function]:
    """Declares the range of a reward function."""

    def declare(function: Function) -> Function:
        function.reward_range = (low, high)  # type: ignore[attr-defined]
        return function

    return declare


def bounds_of(reward: Callable[..., Any]) -> Bounds | None:
    """The declared range; None where there is none."""
    found: Bounds | None = getattr(reward, "reward_range", None)
    return found
