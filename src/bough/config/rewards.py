"""Settings of the rewards of an episode."""

from __future__ import annotations

import math
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BeforeValidator, JsonValue

from bough.config.yaml_file import read_value

Weight = float | dict[str, JsonValue]


def _pairs(value: Any) -> Any:
    """`reward=weight` arguments of the command line, as a mapping; the weight is read as YAML."""
    if not isinstance(value, list):
        return value
    rewards: dict[str, Any] = {}
    for word in value:
        name, equals, text = str(word).partition("=")
        try:
            rewards[name] = read_value(text) if equals else 1.0
        except yaml.YAMLError:
            raise ValueError(f"{word!r} must be written as reward=weight or reward={{weight: 1, …}}") from None
    return rewards


def _weighed(rewards: dict[str, Weight]) -> dict[str, Weight]:
    for name, given in rewards.items():
        weight = given.get("weight", 1.0) if isinstance(given, dict) else given
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ValueError(f"the weight of {name} is {weight!r}; it must be a number")
    return rewards


RewardWeights = Annotated[dict[str, Weight], BeforeValidator(_pairs), AfterValidator(_weighed)]
# What help says of the settings of rewards.
REWARDS = (
    "rewards and their weights, as outcome=1 tool_call=1 'overlong={weight: 1, max_length: 4096}': "
    "outcome, progress, steps, format, mistakes, tool_call, overlong, judge, judge_ranking, module:function or "
    "path/to/file.py:function "
    "(default: the environment's own reward)"
)
REWARD_TIMEOUT = "time limit of one reward of a trajectory or group, in seconds; a longer one ends the run"
