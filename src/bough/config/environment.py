"""Settings of the environment and its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_origin

import yaml
from pydantic import AliasChoices, BeforeValidator, Field, JsonValue, model_validator

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


# How the name of an environment begins that stands for an agent function.
AGENT_PREFIX = "agent:"
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


class PlayedTasksConfig(EnvironmentConfig):
    """Environment and tasks."""

    name: str = Field(
        description="a name of `bough env list`, module:Class or path/to/file.py:Class",
        json_schema_extra={"flag": "environment", "or": "agent"},
    )
    # `--agent X` is `--environment agent:X`: an agent function stands where an environment stands.
    own_agent: str | None = Field(
        None,
        exclude=True,
        validation_alias=AliasChoices("own_agent", "agent"),
        description="your own agent, a function that plays a task against an OpenAI-compatible address: "
        "module:function or path/to/file.py:function (instead of --environment)",
        json_schema_extra={"renamed": True},
    )

    @model_validator(mode="before")
    @classmethod
    def _named_as_environment(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        rest = {key: value for key, value in values.items() if key not in ("own_agent", "agent")}
        agent = values.get("own_agent", values.get("agent"))
        if not agent:
            return rest
        if not isinstance(agent, str):
            raise ValueError("agent must be the name of a function: module:function or path/to/file.py:function")
        if rest.get("name"):
            raise ValueError("give either environment or agent, not both")
        return {**rest, "name": f"{AGENT_PREFIX}{agent}"}


def make_options(options_class: type[Config], values: Mapping[str, JsonValue]) -> Config:
    """An environment's options from the given values; text for a list is split at commas."""
    ready = dict(values)
    for name, info in options_class.model_fields.items():
        value = ready.get(name)
        if isinstance(value, str) and get_origin(plain_type(info.annotation)) is list:
            ready[name] = [part.strip() for part in value.split(",") if part.strip()]
    return options_class(**ready)
