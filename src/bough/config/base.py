"""One definition per command: a `Config` class defines the YAML keys, the flags and the Python arguments.

    SFTConfig(train_file="a.jsonl")                           # Python
    SFTConfig.load("run.yaml", {"learning_rate": "1e-5"})     # a file, then what flags override

Settings that belong together are a part, a small Config of its own (`parts`).

Unknown keys, wrong values and missing ones are reported together, each with its
place, what is wrong and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from bough.config.parts import by_name, flattened, leaves, lifted, overlaid, without
from bough.config.problems import flag, listed, problems_of
from bough.config.yaml_file import YamlFile
from bough.errors import InputError

# The largest seed, size or count that the libraries accept.
LARGEST = 2**63 - 1
# As a path, s3://bucket/run would be a folder of this machine with the name `s3:`. Data is also read from hf://.
ADDRESS = re.compile(r"(?!hf:)[a-z][a-z0-9+.-]+:/", re.IGNORECASE)


class Config(BaseModel):
    """Settings of one command, or a part of them. Subclasses declare fields, each with a description.

    `command` is the command whose settings these are; the settings file of a run names it.
    """

    command: ClassVar[str] = ""
    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, populate_by_name=True, allow_inf_nan=False
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise listed(type(self).__name__, problems_of(type(self), error, values)) from error

    # Without this mark pydantic would make a part by calling the method above, and the first
    # part with a problem would hide all other problems.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @model_validator(mode="before")
    @classmethod
    def _lift(cls, values: Any) -> Any:
        return lifted(cls, values) if isinstance(values, Mapping) else values

    @field_validator("*", mode="after")
    @classmethod
    def _fits(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError(f"it must be at most {LARGEST}")
        if isinstance(value, Path) and ADDRESS.match(str(value)):
            raise ValueError("it must be on a disk of this machine, not an address; an object store can be mounted")
        return value

    @classmethod
    def load(cls, file: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> Self:
        """The settings of a YAML file with `overrides` (from flags) on top."""
        document = YamlFile.read(file) if file is not None else YamlFile("", {}, {}, [])
        overrides = {cls.field_name(key): value for key, value in (overrides or {}).items()}
        command = document.values.pop("command", cls.command)
        own_names, foreign = translate(document.values, leaves(cls))
        from_file = without(cls, own_names, overrides)
        values = overlaid(cls, from_file, overrides)
        places = {RENAMED.get(key, key): f"{document.name}:{line}: " for key, line in document.lines.items()}
        other = f"{document.name} has the settings of bough {command}, not of this command"
        problems = [
            *document.problems,
            *([] if command == cls.command else [other]),
            *(f"{places.get(RENAMED.get(key, key), '')}{said}" for key, said in foreign.items()),
        ]

        def names_code(key: str, setting: str, name: str) -> str:
            named = f"{key} names code ({name!r}), which a file may not do"
            return f"{places.get(key, '')}{named}; give it as a flag, {flag(setting)}"

        problems += [names_code(*found) for found in code_in(from_file)]
        source = document.name or "the command line"
        if document.name and overrides:
            source = f"{document.name} with the flags"
        try:
            settings = cls(**values)
        except InputError as error:
            assert isinstance(error.__cause__, ValidationError)
            problems += problems_of(cls, error.__cause__, values, places, set(overrides))
            raise listed(source, problems) from None
        problems += [
            names_code(setting, setting, name)
            for setting in CHANGES
            if setting in from_file
            for key, value in getattr(settings, setting).items()
            for one in (value if isinstance(value, list) else [value])
            for name in dict.fromkeys(code_in_change(key, one))
        ]
        if problems:
            raise listed(source, problems)
        return settings

    @classmethod
    def field_name(cls, key: str) -> str:
        """The flat name of the setting that a key stands for: itself, or the setting it is an alias of."""
        leaf = by_name(cls).get(key)
        return leaf.flat if leaf else key

    def flat_dump(self, **how: Any) -> dict[str, Any]:
        """The settings by their flat names, as JSON values; `how` is as in pydantic's `model_dump`."""
        return flattened(type(self), self.model_dump(mode="json", **how))

    def recorded(self) -> dict[str, Any]:
        """The settings as JSON values, after the command that they are of."""
        return {"command": self.command} | self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """The resolved settings, as a file that `load` reads."""
        return yaml.safe_dump(self.recorded(), sort_keys=False, allow_unicode=True)


def setting(
    default: Any = ..., *, flag: str | None = None, short: str | None = None, positional: bool | None = None, **of: Any
) -> Any:
    """A field with its place on the command line: the flag that it has (also its flat name), a short one, or neither.

    `of` is as in pydantic's `Field`.
    """
    extra = {"flag": flag, "short": short, "positional": positional}
    return Field(default, json_schema_extra={key: value for key, value in extra.items() if value is not None}, **of)


# Settings that can name code: an environment, a reward or an agent as `module:name` or `path/to/file.py:name`.
# The address of a cluster is one of them: Ray unpickles what the other machines send, so they can run code here. Code
# may be named on the command line and in Python. A file (a recipe, a `--config` file, a record) may come from anyone,
# so reading it must never run code.

SETTINGS = ("environment", "rewards", "rules", "agent", "own_agent", "cluster")
# Parts that are written as a mapping, in which this setting names the code, or as the name alone; and one that has
# a setting's name.
NAMED_BY_PART = {"environment": "name", "cluster": "address"}
PARTS = (*NAMED_BY_PART, "agent")
# Settings of a command that change settings of a recipe.
CHANGES = ("set", "vary")
# Settings that are mappings with any keys, and how the name of an option begins that lets code do more than it may.
OPEN = ("options", "rule_options")
UNSAFE = "unsafe_"
# Environments of installed packages, by the names those packages gave them. With a second colon
# gymnasium imports a module, and the other adapters run commands or contact servers.
OF_A_PACKAGE = re.compile(r"(?:gymnasium|textarena):[^:]+")


def is_code(name: str) -> bool:
    """Whether a setting is code to load, a command to run or a server to contact."""
    return ":" in name and OF_A_PACKAGE.fullmatch(name) is None


def code_in(settings: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Every setting that names code: its name as it is written, its flat name, and the name of the code."""
    for key, given in settings.items():
        if key in SETTINGS and not (key in PARTS and isinstance(given, Mapping)):
            yield from ((key, key, name) for name in _code(given))
        elif key in OPEN:
            yield from ((f"{key}.{name}", key, name) for name in _unsafe(given))
        elif isinstance(given, Mapping):
            for inside, value in given.items():
                setting = key if NAMED_BY_PART.get(key) == inside else str(inside)
                if setting in OPEN:
                    yield from ((f"{key}.{inside}.{name}", setting, name) for name in _unsafe(value))
                elif setting in SETTINGS:
                    yield from ((f"{key}.{inside}", setting, name) for name in _code(value))


def code_in_change(key: str, value: Any) -> Iterator[str]:
    """Names of code in a change of a recipe, such as `grpo.environment` or `defaults`, to `value`."""
    *_, part, last = ["", *key.split(".")]
    # The key may end in a setting or in one inside a part, or the value may give several settings.
    meant = [{last: value}, {part: {last: value}}, *([value] if isinstance(value, Mapping) else [])]
    yield from (name for one in meant for _, _, name in code_in(one))


def _names(given: Any) -> list[Any]:
    # Several are a mapping by name, or a list of NAME=VALUE as on the command line.
    return [str(one).partition("=")[0] for one in given] if isinstance(given, Mapping | list) else [given]


def _unsafe(options: Any) -> list[str]:
    return [name for name in _names(options) if isinstance(name, str) and name.startswith(UNSAFE)]


def _code(given: Any) -> list[str]:
    return [name for name in _names(given) if isinstance(name, str) and is_code(name)]


# Keys of other tools' configuration files: knowlyr-trainer's and AgileRL's YAML is read as it is written.
# Only files are translated. The settings themselves, the flags and the Python arguments have one name each.

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
