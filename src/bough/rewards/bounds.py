"""The least and the most that a reward can be, declared where it is defined.

    @bounded(0.0, 1.0)
    def brevity(trajectory: Trajectory) -> float: ...

A value outside its bounds is a mistake in the reward or an exploit of it. Neither should
be trained on, so the run stops. A value that what the agent wrote keeps from being computed
(AgentFaultError) is the worst one within them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from bough.errors import BoughError

Function = TypeVar("Function", bound=Callable[..., Any])
Bounds = tuple[float, float]


class AgentFaultError(BoughError):
    """What the agent wrote keeps a reward from being computed: the attempt must not leave the comparison by it."""


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
