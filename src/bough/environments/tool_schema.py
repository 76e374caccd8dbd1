"""A tool's parameters: the JSON schema that agents read, and the check of a call's arguments.

Both come from the method's signature and its docstring. Parameters may be described in an
"Args:" section or with `Annotated[int, Field(description=…)]`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, get_type_hints

from pydantic import ConfigDict, Field, JsonValue, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic_core import to_json
from typing_extensions import TypedDict

ARGUMENTS = re.compile(r"^\s*(?:Args|Arguments|Parameters):\s*$", re.MULTILINE)
SECTION = re.compile(r"^\s*(?:Returns|Raises|Yields|Examples?|Notes?):\s*$", re.MULTILINE)
DESCRIBED = re.compile(r"^[ \t]+(\w+)(?:[ \t]*\([^)]*\))?:[ \t]*(.*(?:\n[ \t]{8,}\S.*)*)", re.MULTILINE)

# What an agent reads of a wrong call: it may have written thousands of arguments with long names.
MAX_PROBLEMS = 10
MAX_PROBLEM = 200


@dataclass(frozen=True)
class ToolSchema:
    """One tool. `parameters` are its names in order; `adapter` checks the arguments of a call."""

    name: str
    description: str
    parameters: tuple[str, ...]
    adapter: TypeAdapter[dict[str, Any]]

    @classmethod
    def of(cls, owner: type, name: str) -> ToolSchema:
        """The schema of the method `name`. Raises TypeError saying what its author has to add."""
        method = getattr(owner, name)
        where = f"tool {owner.__name__}.{name}"
        text = inspect.getdoc(method)
        if not text:
            raise TypeError(
                f"{where} needs a docstring, which tells the agent what the tool does; "
                "if it is not a tool, begin its name with an underscore"
            )
        description, arguments = _split(text)
        described = {found: " ".join(words.split()) for found, words in DESCRIBED.findall(arguments)}
        try:
            hints = get_type_hints(method, include_extras=True)
        except NameError as error:
            raise TypeError(f"{where}: {error}; its annotations must be defined at the top level of its file") from None
        fields: dict[str, Any] = {}
        for parameter in list(inspect.signature(method).parameters.values())[1:]:
            fields[parameter.name] = _field(where, parameter, hints, described.get(parameter.name))
        if unknown := [found for found in described if found not in fields]:
            raise TypeError(f"{where}: its docstring describes {unknown[0]!r}, which is not a parameter")
        return cls(name, description, tuple(fields), _adapter(where, fields))

    def to_json(self) -> dict[str, Any]:
        """The tool as chat templates and servers take it."""
        schema = _without_titles(self.adapter.json_schema())
        schema.pop("additionalProperties", None)
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": function}

    def read(self, arguments: Mapping[str, JsonValue]) -> dict[str, Any]:
        """The arguments of a call as values for the method. Raises ValidationError."""
        # As JSON: a date or an enumeration is a string there, but "3" is not a number.
        return self.adapter.validate_json(to_json(arguments))

    def explain(self, error: ValidationError) -> str:
        """What is wrong with a call, for the agent."""
        found = error.errors(include_url=False, include_input=False)
        problems = [f"{'.'.join(map(str, one['loc'])):.{MAX_PROBLEM}}: {one['msg']:.{MAX_PROBLEM}}" for one in found]
        more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
        said = "; ".join(problems[:MAX_PROBLEMS]) + more
        return f"{self.name}({', '.join(self.parameters)}) was called with invalid arguments. {said}."

    def named(self, arguments: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Arguments whose keys may be positions ("0", "1", …), by name."""
        names = dict(zip(map(str, range(len(self.parameters))), self.parameters, strict=False))
        return {names.get(key, key): value for key, value in arguments.items()}


def _split(text: str) -> tuple[str, str]:
    """A docstring's description, and its section on arguments."""
    before, *after = ARGUMENTS.split(text, maxsplit=1)
    description = SECTION.split(before, maxsplit=1)[0]
    return description.strip(), SECTION.split(after[0], maxsplit=1)[0] if after else ""


def _field(where: str, parameter: inspect.Parameter, hints: Mapping[str, Any], description: str | None) -> Any:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise TypeError(f"{where}: {parameter} cannot be filled in by an agent; give each parameter a name of its own")
    if parameter.name not in hints:
        raise TypeError(f"{where}: parameter {parameter.name} needs a type annotation")
    required = parameter.default is parameter.empty
    more: dict[str, Any] = {} if required else {"json_schema_extra": {"default": _plain(parameter.default)}}
    if description:
        more["description"] = description
    field = Annotated[hints[parameter.name], Field(**more)] if more else hints[parameter.name]
    return field if required else NotRequired[field]


def _adapter(where: str, fields: dict[str, Any]) -> TypeAdapter[dict[str, Any]]:
    typed_dict: Any = TypedDict  # mypy knows only fields that are written out
    arguments = typed_dict("arguments", fields)
    arguments.__pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    try:
        adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(arguments)
        adapter.json_schema()
    except (PydanticSchemaGenerationError, ValueError) as error:
        raise TypeError(f"{where}: its parameters cannot be described as JSON: {error}") from None
    return adapter


def _plain(value: Any) -> Any:
    return json.loads(to_json(value, fallback=str))


def _without_titles(schema: Any) -> Any:
    """The schema without the titles that repeat each name. A property may itself be called "title"."""
    if isinstance(schema, list):
        return [_without_titles(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _without_titles(one) for key, one in schema.items() if key != "title" or not isinstance(one, str)}
