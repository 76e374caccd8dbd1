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
# A block that is not complete.
PARTIAL = re.compile(
    r"```[ \t]*(?:\w{0,9}[ \t]*|(?:(?:json|tool_call|tool_code)[ \t]*)?\n.*)", re.DOTALL | re.IGNORECASE
)
FENCE, THOUGHT = "```", "</think>"
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


def split(text: str, names: Collection[str]) -> tuple[str, tuple[ToolCall, ...]]:
    """The text without its calls, and the calls of tools in `names`. What stands in `<think>` makes none."""
    thinking, ended, spoken = text.rpartition(THOUGHT)
    calls = () if "<think>" in spoken else read_calls(spoken.strip(), names)
    if not calls:
        return text, ()
    return (thinking + ended + (BLOCK.sub("", spoken) if BLOCK.search(spoken) else "")).rstrip(), calls


def first_undecided(text: str, names: Collection[str]) -> int:
    """Where calls may begin in a text that is not complete: what stands before it stays, whatever follows."""
    at = text.rfind(THOUGHT) + len(THOUGHT) if THOUGHT in text else 0
    if text[at:].lstrip()[:1] in ("", "{", "["):
        return at
    while (at := text.find(FENCE, at)) >= 0:
        if (block := BLOCK.match(text, at)) is not None:
            # One block that is not a call, and nothing in the text is.
            return at if read_calls(block[0], names) else len(text)
        if PARTIAL.fullmatch(text, at):
            return at
        at += 1
    return len(text.rstrip("`"))


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
