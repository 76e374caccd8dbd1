"""From a name to a reward: one of ours, or a function of your own.

outcome                        one of ours
my_package.rewards:brevity     a function of an installed module
rewards/brevity.py:brevity     a function of a file

`@bounded(low, high)` above a function declares its range, and a value outside it stops the run.
"""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from bough.errors import InputError, describe_failure, did_you_mean
from bough.rewards.format import format
from bough.rewards.outcome import outcome
from bough.rewards.overlong import overlong
from bough.rewards.progress import progress
from bough.rewards.steps import steps
from bough.rewards.tool_call import tool_call

Reward = Callable[..., float | None]
REWARDS: dict[str, Reward] = {
    "outcome": outcome,
    "progress": progress,
    "steps": steps,
    "format": format,
    "tool_call": tool_call,
    "overlong": overlong,
}


def find(name: str) -> Reward:
    """The reward of that name. Raises InputError saying what was tried."""
    if name in REWARDS:
        return REWARDS[name]
    place, colon, attribute = name.rpartition(":")
    if not colon:
        raise InputError(
            f"there is no reward {name!r}{did_you_mean(name, REWARDS)}; "
            "your own is given as module:function or path/to/file.py:function"
        )
    found = _members(place, name)
    if attribute not in found:
        functions = [key for key, value in found.items() if inspect.isfunction(value)]
        raise InputError(f"reward {name!r}: {place} has no {attribute!r}{did_you_mean(attribute, functions)}")
    if not callable(found[attribute]):
        raise InputError(f"reward {name!r} is a {type(found[attribute]).__name__}; it must be a function")
    reward: Reward = found[attribute]
    return reward


def parameters(reward: Reward) -> list[str]:
    """What can be set of a reward: its keyword arguments."""
    return [p.name for p in inspect.signature(reward).parameters.values() if p.kind is p.KEYWORD_ONLY]


def _members(place: str, name: str) -> dict[str, Any]:
    if place.endswith(".py") and not Path(place).is_file():
        raise InputError(f"reward {name!r}: there is no file {place}")
    try:
        return runpy.run_path(place) if place.endswith(".py") else vars(import_module(place))
    except Exception as error:  # code that is not ours fails in whatever way it likes
        raise InputError(describe_failure(f"reward {name!r} cannot be loaded: {place}", error)) from error
