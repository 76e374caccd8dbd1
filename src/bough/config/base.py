"""One definition per command: a `Config` class defines the YAML keys, the flags and the Python arguments.

    SFTConfig(train_file="a.jsonl")                           # Python
    SFTConfig.load("run.yaml", {"learning_rate": "1e-5"})     # a file, then what flags override

Unknown keys, wrong values and missing ones are reported together, each with its
place, what is wrong and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from pydantic.fields import FieldInfo

from bough.config.code_names import code_in
from bough.config.other_tools import RENAMED, translate
from bough.config.yaml_file import YamlFile
from bough.errors import InputError, did_you_mean

# The largest seed, size or count that the libraries accept.
LARGEST = 2**63 - 1


class Config(BaseModel):
    """Settings of one command. Subclasses declare fields, each with a description."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, populate_by_name=True, allow_inf_nan=False
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _input_error(type(self), error, {}, type(self).__name__) from error

    @field_validator("*", mode="after")
    @classmethod
    def _fits(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError(f"it must be at most {LARGEST}")
        return value

    @classmethod
    def load(cls, file: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> Self:
        """The settings of a YAML file with `overrides` (from flags) on top."""
        document = YamlFile.read(file) if file is not None else YamlFile("", {}, {}, [])
        overrides = {cls.field_name(key): value for key, value in (overrides or {}).items()}
        own_names, foreign = translate(document.values, cls.model_fields)
        from_file = {key: value for key, value in own_names.items() if cls.field_name(key) not in overrides}
        places = {RENAMED.get(key, key): f"{document.name}:{line}: " for key, line in document.lines.items()}
        problems = [
            *document.problems,
            *(f"{places.get(RENAMED.get(key, key), '')}{said}" for key, said in foreign.items()),
        ]
        problems += [
            f"{places[key]}{key} names code ({name!r}), which a file may not do; give it as a flag, {flag(key)}"
            for key, name in code_in(from_file)
        ]
        values = from_file | overrides
        source = document.name or "the command line"
        if document.name and overrides:
            source = f"{document.name} with the flags"
        try:
            settings = cls(**values)
        except InputError as error:
            assert isinstance(error.__cause__, ValidationError)
            raise _input_error(cls, error.__cause__, places, source, problems, set(overrides)) from None
        if problems:
            raise InputError(f"{source} has {_count(len(problems))}:", problems)
        return settings

    @classmethod
    def field_name(cls, key: str) -> str:
        """The name of the field that a key stands for: itself, or the field it is an alias of."""
        for name, info in cls.model_fields.items():
            if key in other_names(info):
                return name
        return key

    def to_yaml(self) -> str:
        """The resolved settings, as a file that `load` reads."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def other_names(info: FieldInfo) -> list[str]:
    """Aliases of a field: its names in other tools."""
    choices = getattr(info.validation_alias, "choices", [])
    return [str(choice) for choice in choices]


def flag(name: str) -> str:
    """A field's name as it is written on the command line."""
    return "--" + name.replace("_", "-")


def is_positional(info: FieldInfo) -> bool:
    """Whether the field is a positional argument of the command line."""
    return isinstance(info.json_schema_extra, dict) and bool(info.json_schema_extra.get("positional"))


def _input_error(
    cls: type[Config],
    error: ValidationError,
    places: Mapping[str, str],
    source: str,
    more: list[str] | None = None,
    from_flags: set[str] | None = None,
) -> InputError:
    problems = list(more or [])
    for finding in error.errors(include_url=False):
        key = str(finding["loc"][0]) if finding["loc"] else ""
        inside = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in finding["loc"][1:])
        spell = flag if key in (from_flags or ()) or (finding["type"] == "missing" and from_flags is not None) else str
        problems.append(f"{places.get(key, '')}{_sentence(cls, key, inside, finding, spell)}")
    return InputError(f"{source} has {_count(len(problems))}:", problems)


def _sentence(cls: type[Config], name: str, inside: str, finding: Any, spell: Callable[[str], str]) -> str:
    kind, context, given = finding["type"], finding.get("ctx", {}), finding.get("input")
    key = spell(name) + inside
    if kind == "extra_forbidden":
        return f"{key} is not a setting{did_you_mean(key, map(spell, cls.model_fields))}"
    if kind == "missing":
        return f"{name.upper() if is_positional(cls.model_fields[name]) else key} is required"
    if kind == "literal_error":
        return f"{key} is {given!r}; choose one of {context['expected'].replace(' or ', ', ')}"
    if kind in ("value_error", "assertion_error"):
        message = finding["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        return f"{key} is {given!r}; {message}" if key else message
    rule = RULES.get(kind.removesuffix("_parsing").removesuffix("_type").removesuffix("_from_float"))
    if rule is None:
        message = finding["msg"].removeprefix("Input should ")
        rule = f"it should {message}" if message != finding["msg"] else message
    return f"{key} is {given!r}; {rule}"


RULES = {
    "int": "it must be a whole number",
    "float": "it must be a number",
    "bool": "it must be true or false",
    "string": "it must be text",
    "list": "it must be a list",
    "dict": "it must be a mapping",
}


def _count(problems: int) -> str:
    return "1 problem" if problems == 1 else f"{problems} problems"
