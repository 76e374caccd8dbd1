"""From the benchmark's descriptions of functions to the JSON schemas that chat templates and servers take.

Types are translated as the benchmark does it for models with native tool calls. The
schemas of return values are left out: they are a third of the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

# As in the benchmark; any other type becomes a string.
TYPES = {
    **dict.fromkeys(("integer", "byte", "short", "long", "Bigint"), "integer"),
    **dict.fromkeys(("number", "float", "double"), "number"),
    **dict.fromkeys(("boolean", "bool"), "boolean"),
    **dict.fromkeys(("array", "list", "tuple", "ArrayList", "Array", "Queue", "Stack"), "array"),
    **dict.fromkeys(("dict", "object", "HashMap", "Hashtable"), "object"),
}
KEPT = ("description", "enum", "default")
LANGUAGES = {"simple_java": ("Java 8 SDK", "Java"), "simple_javascript": ("JavaScript", "JavaScript")}


def tools(functions: Iterable[Mapping[str, Any]], set_name: str) -> tuple[dict[str, Any], ...]:
    """The functions that a task offers, as tools."""
    return tuple(tool(function, set_name) for function in functions)


def tool(function: Mapping[str, Any], set_name: str) -> dict[str, Any]:
    """One function as a tool."""
    syntax, language = LANGUAGES.get(set_name, ("Python 3", None))
    given = function["parameters"]
    properties = {
        name: _parameter(schema) if language is None else _text_parameter(schema, language)
        for name, schema in given["properties"].items()
    }
    described = {
        "name": tool_name(function["name"]),
        "description": f"{function['description']} Note that the provided function is in {syntax} syntax.",
        "parameters": {"type": "object", "properties": properties, "required": list(given.get("required", []))},
    }
    return {"type": "function", "function": described}


def tool_name(name: str) -> str:
    """The function's name; servers allow no dots in it."""
    return name.replace(".", "_")


def _parameter(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter of a Python function; nested types likewise."""
    named = schema.get("type", "string")
    found: dict[str, Any] = {"type": TYPES.get(named, "string")}
    found |= {key: schema[key] for key in KEPT if key in schema}
    if named == "float":
        found["description"] = f"{found.get('description', '')} This is a float type value.".strip()
    if found["type"] == "object" and "properties" in schema:
        found["properties"] = {name: _parameter(one) for name, one in schema["properties"].items()}
        if "required" in schema:
            found["required"] = schema["required"]
    elif found["type"] == "array" and "items" in schema:
        found["items"] = _parameter(schema["items"])
    return found


def _text_parameter(schema: Mapping[str, Any], language: str) -> dict[str, Any]:
    """A parameter of a function in another language: its value is written in that language, as a string."""
    named = schema["type"]
    kind = f"any type of {language} object" if named == "any" else None
    note = f"This parameter can be of {kind} in string representation." if kind else ""
    note = note or f"This is {language} {named} type parameter in string representation."
    if "items" in schema:
        note += f" The list elements are of type {schema['items']['type']}; they are not in string representation."
    if named == "dict" and "properties" in schema:
        fields = json.dumps(schema["properties"])
        note += f" The dictionary entries have the following schema; they are not in string representation. {fields}"
    return {"type": "string", "description": f"{schema.get('description', '')} {note}".strip()}
