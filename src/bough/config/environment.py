"""Settings of the environment and its tasks."""

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
    """`key=value` arguments of the command line, as a mapping; values are read as YAML."""
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
    """An environment's options; on the command line dashes may stand for underscores."""
    found = key_values(value)
    return {key.replace("-", "_"): one for key, one in found.items()} if isinstance(value, list) else found


OptionValues = Annotated[dict[str, JsonValue], BeforeValidator(_options)]


class EnvironmentConfig(Config):
    """Environment and tasks."""

    name: str = Field(
        description="a name of `bough env list`, module:Class or path/to/file.py:Class",
        json_schema_extra={"flag": "environment"},
    )
    options: OptionValues = Field(
        {}, description="options of the environment as key=value (`bough env list NAME` lists them)"
    )
    split: str = Field("train", description="the split to draw tasks from: train, seen or unseen")
    task_file: Path | None = Field(
        None, description="a JSON Lines file of tasks, instead of the environment's own tasks"
    )


def make_options(options_class: type[Config], values: Mapping[str, JsonValue]) -> Config:
    """An environment's options from the given values; text for a list is split at commas."""
    ready = dict(values)
    for name, info in options_class.model_fields.items():
        value = ready.get(name)
        if isinstance(value, str) and get_origin(plain_type(info.annotation)) is list:
            ready[name] = [part.strip() for part in value.split(",") if part.strip()]
    return options_class(**ready)
