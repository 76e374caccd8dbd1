"""Settings that say which world, and which of its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_origin

import yaml
from pydantic import BeforeValidator, Field, JsonValue

from bough.config.base import Config
from bough.config.flags import plain_type
from bough.config.yaml_file import read_value


def key_values(value: Any) -> Any:
    """`key=value` words from the command line, as a mapping; values are read as YAML."""
    if not isinstance(value, list):
        return value
    options = {}
    for word in value:
        key, equals, text = str(word).partition("=")
        if not equals:
            raise ValueError(f"{word!r} must be written as key=value")
        try:
            options[key] = read_value(text) if text else ""
        except yaml.YAMLError:
            options[key] = text
    return options


def _options(value: Any) -> Any:
    """A world's settings, which may be written as flags are."""
    found = key_values(value)
    return {key.replace("-", "_"): one for key, one in found.items()} if isinstance(value, list) else found


OptionValues = Annotated[dict[str, JsonValue], BeforeValidator(_options)]


class EnvironmentConfig(Config):
    """Which world, and which of its tasks."""

    environment: str = Field(
        description="household, web, interpreter, an installed plug-in, module:Class or path/to/file.py:Class"
    )
    options: OptionValues = Field(
        {}, description="the world's own settings as key=value (`bough env list NAME` shows them)"
    )
    split: str = Field("train", description="train, seen or unseen: which tasks to draw from")
    task_file: Path | None = Field(None, description="tasks from a JSON Lines file instead of the world's own")
    seed: int = Field(0, ge=0, description="fixes the tasks and every draw")


def make_options(kind: type[Config], values: Mapping[str, JsonValue]) -> Config:
    """A world's options out of what was given; text for a list is split at its commas."""
    ready = dict(values)
    for name, info in kind.model_fields.items():
        value = ready.get(name)
        if isinstance(value, str) and get_origin(plain_type(info.annotation)) is list:
            ready[name] = [part.strip() for part in value.split(",") if part.strip()]
    return kind(**ready)
