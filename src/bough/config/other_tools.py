"""Keys of other tools' configuration files: knowlyr-trainer's and AgileRL's YAML is read as it is written.

Only files are translated. The settings themselves, the flags and the Python arguments
have one name each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

RENAMED = {"model_name_or_path": "model", "lr": "learning_rate"}
# Settings of knowlyr-trainer that cannot be turned off in Bough, and why.
ALWAYS_ON = {
    "agent_format": "replies are always separate turns",
    "mask_observations": "only replies are trained",
    "chunk_long_trajectories": "a long prompt always drops its oldest steps",
}
STEP_LEVEL = "step_level_advantage"


def translate(values: Mapping[str, Any], fields: Collection[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of a file by their names in Bough, for a command with these `fields`, and the problems by key."""
    translated: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for key, value in values.items():
        if key in ALWAYS_ON and "train_file" in fields:
            if value is not True:
                problems[key] = f"{key} is {value!r}; choose one of True: {ALWAYS_ON[key]}"
        elif key == STEP_LEVEL and "advantage" in fields:
            if value is True:
                translated["advantage"] = "step"
        elif key in RENAMED and RENAMED[key] in fields:
            translated[RENAMED[key]] = value
            if RENAMED[key] in values:
                problems[key] = f"{key} means {RENAMED[key]}, which is given too; remove one of them"
        else:
            translated[key] = value
    return translated, problems
