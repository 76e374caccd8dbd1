"""Values written in Java and JavaScript, in the forms that the benchmark's checker reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SUFFIXES = {("simple_java", "long"): "L", ("simple_java", "float"): "f", ("simple_javascript", "Bigint"): "n"}


def written(value: Any, schema: Mapping[str, Any], set_name: str) -> str:
    """A value of a parameter's type as code."""
    kind = schema["type"]
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return f"{value}{SUFFIXES.get((set_name, kind), '')}"
    if set_name == "simple_javascript":
        return _javascript(value)
    if isinstance(value, dict):
        puts = " ".join(f"put({json.dumps(key)}, {json.dumps(one)});" for key, one in value.items())
        return f"new HashMap<String, Object>() {{{{ {puts} }}}}"
    item = schema["items"]["type"]
    if kind == "ArrayList":
        return f"new ArrayList<>(Arrays.asList({', '.join(_java_item(one, item) for one in value)}))"
    # The checker takes the elements of an array as they are, quotes included.
    return f"new {item}[]{{{', '.join(map(str, value))}}}"


def _java_item(value: Any, kind: str) -> str:
    if isinstance(value, str) and kind == "any":
        return value
    return json.dumps(value) + SUFFIXES.get(("simple_java", kind), "")


def _javascript(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_javascript(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_javascript, value)) + "]"
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)
