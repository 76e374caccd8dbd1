"""The settings file of a run folder, `config.yaml`: which command wrote it, and the settings by their flat names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bough.config.base import Config
from bough.config.parts import flattened, leaves
from bough.config.yaml_file import YamlFile
from bough.runs.kinds import KINDS
from bough.verbs import VERBS, resolve

NAME = "config.yaml"


def read_settings(file: Path) -> tuple[str | None, dict[str, Any]]:
    """The command, None if no command writes such settings, and the settings; they may be nested or flat on file."""
    values = YamlFile.read(file).values
    classes: dict[str, type[Config]] = {verb: resolve(VERBS[verb].config) for verb in (*KINDS, "doctor")}
    flat = {verb: flattened(config, values) for verb, config in classes.items()}
    likeness = {verb: _likeness(flat[verb], leaves(config)) for verb, config in classes.items()}
    best = max(likeness, key=lambda verb: likeness[verb])
    return (best, flat[best]) if likeness[best] > 0.5 else (None, dict(values))


def _likeness(keys: Mapping[str, Any], settings: Mapping[str, Any]) -> float:
    """How alike a file's keys and a command's settings are: 1 if they are the same, also across versions above 0.5."""
    return len(keys.keys() & settings.keys()) / len(keys.keys() | settings.keys())
