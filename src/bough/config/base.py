"""One definition per command: a `Config` class defines the YAML keys, the flags and the Python arguments.

    SFTConfig(train_file="a.jsonl")                           # Python
    SFTConfig.load("run.yaml", {"learning_rate": "1e-5"})     # a file, then what flags override

Settings that belong together are a part, a small Config of its own (`parts`).

Unknown keys, wrong values and missing ones are reported together, each with its
place, what is wrong and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from bough.config.code_names import CHANGES, code_in, code_in_change
from bough.config.other_tools import RENAMED, translate
from bough.config.parts import by_name, flattened, leaves, lifted, overlaid, without
from bough.config.problems import flag, listed, problems_of
from bough.config.yaml_file import YamlFile
from bough.errors import InputError

# The largest seed, size or count that the libraries accept.
LARGEST = 2**63 - 1
# As a path, s3://bucket/run would be a folder of this machine with the name `s3:`. Data is also read from hf://.
ADDRESS = re.compile(r"(?!hf:)[a-z][a-z0-9+.-]+:/", re.IGNORECASE)


class Config(BaseModel):
    """Settings of one command, or a part of them. Subclasses declare fields, each with a description."""

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
        own_names, foreign = translate(document.values, leaves(cls))
        from_file = without(cls, own_names, overrides)
        values = overlaid(cls, from_file, overrides)
        places = {RENAMED.get(key, key): f"{document.name}:{line}: " for key, line in document.lines.items()}
        problems = [
            *document.problems,
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

    def to_yaml(self) -> str:
        """The resolved settings, as a file that `load` reads."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
