"""Tool calls written as bare JSON or in a ```` ```json ```` block, as many models do whatever they were told.

They are understood, so that such a model can act and be trained; an environment counts them as malformed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from pydantic import ValidationError

from bough.speech.base import MAX_CALLS, MalformedError
from bough.speech.hermes import check_call
from bough.types import ToolCall

BLOCK = re.compile(r"```[ \t]*(?:(?:json|tool_call|tool_code)[ \t]*)?\n(.*?)```", re.DOTALL | re.IGNORECASE)
DECODER = json.JSONDecoder(strict=False)


def read_calls(text: str, names: Collection[str]) -> tuple[ToolCall, ...]:
    """The calls of tools in `names`; none if anything in a block, or in a text of bare JSON, is not such a call."""
    blocks = BLOCK.findall(text) or [text]
    found: list[ToolCall] = []
    for block in blocks:
        for value in _values(block.strip()):
            call = _call(value, names)
            if call is None or len(found) == MAX_CALLS:
                return ()
            found.append(call)
    return tuple(found)


def _values(text: str) -> list[Any]:
    """The JSON objects that a text is made of, or those of a list; [None] for anything else."""
    values, at = list[Any](), 0
    try:
        while at < len(text):
            value, at = DECODER.raw_decode(text, at)
            values += value if isinstance(value, list) else [value]
            while at < len(text) and text[at] in " \t\r\n,;":
                at += 1
    except (ValueError, RecursionError):
        return [None]
    return values


def _call(value: Any, names: Collection[str]) -> ToolCall | None:
    if not isinstance(value, dict) or value.get("name") not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, dict) or value.keys() - {"name", "arguments", "parameters", "id", "type"}:
        return None
    try:
        call = ToolCall(name=value["name"], arguments=arguments)
        check_call(call)
    except (ValidationError, MalformedError):
        return None
    return call
