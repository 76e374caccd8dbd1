"""From a name to a reward function: a built-in one, or your own.

outcome                        built in
judge                          built in, asks a model; never used unless it is named
my_package.rewards:brevity     a function of an installed module
rewards/brevity.py:brevity     a function of a file
"""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from bough import given
from bough.errors import InputError, describe_failure, did_you_mean
from bough.rewards import builtin
from bough.rewards.judge import Judge, RankingJudge

RewardFunction = Callable[..., Any]
REWARDS: dict[str, RewardFunction] = {
    "outcome": builtin.outcome,
    "progress": builtin.progress,
    "steps": builtin.steps,
    "format": builtin.format,
    "mistakes": builtin.mistakes,
    "tool_call": builtin.tool_call,
    "overlong": builtin.overlong,
    "judge": Judge,
    "judge_ranking": RankingJudge,
}


def find(name: str) -> RewardFunction:
    """The reward function of that name. Raises InputError saying what was tried."""
    if name in given.REWARDS:
        return given.REWARDS[name]
    if name in REWARDS:
        return REWARDS[name]
    place, colon, attribute = name.rpartition(":")
    if not colon:
        raise InputError(
            f"there is no reward {name!r}{did_you_mean(name, REWARDS)} "
            "(your own: module:function or path/to/file.py:function)"
        )
    found = _members(place, name)
    if attribute not in found:
        functions = [key for key, value in found.items() if inspect.isfunction(value)]
        raise InputError(f"reward {name!r}: {place} has no {attribute!r}{did_you_mean(attribute, functions)}")
    if not callable(found[attribute]):
        raise InputError(f"reward {name!r} is of type {type(found[attribute]).__name__}; it must be a function")
    function: RewardFunction = found[attribute]
    return function


def _members(place: str, name: str) -> dict[str, Any]:
    if place.endswith(".py") and not Path(place).is_file():
        raise InputError(f"reward {name!r}: there is no file {place}")
    try:
        return runpy.run_path(place) if place.endswith(".py") else vars(import_module(place))
    except (Exception, SystemExit) as error:  # the user's code may raise anything, and a script may exit
        raise InputError(describe_failure(f"reward {name!r} cannot be loaded: {place}", error)) from error
