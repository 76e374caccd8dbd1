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
OPENING = re.compile(r"```[ \t]*(?:(?:json|tool_call|tool_code)[ \t]*)?\n", re.IGNORECASE)
# An opening that is not complete.
INCOMPLETE = re.compile(r"```[ \t]*\w{0,9}[ \t]*")
SPACE = re.compile(r"\s*")
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


class Undecided:
    """Finds where calls may begin in a text that is still being written. `names` are the tools."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        # Where the reply begins after its thoughts, and the same if it is known to have no calls.
        self._spoken, self._text_from = 0, -1

    def first(self, text: str, start: int) -> int:
        """What stands before it stays text, whatever follows. Before `start` everything was decided earlier."""
        ended = text.rfind(THOUGHT, max(0, start - len(THOUGHT)))
        self._spoken = max(self._spoken, ended + len(THOUGHT) if ended >= 0 else 0)
        if self._spoken == self._text_from:
            return len(text)
        begin = SPACE.match(text, self._spoken).end()  # type: ignore[union-attr]  # no white space is a match, too
        if text[begin : begin + 1] in ("", "{", "["):
            return self._spoken
        at = max(start, self._spoken)
        while (at := text.find(FENCE, at)) >= 0:
            opened = OPENING.match(text, at)
            if opened is not None:
                closed = text.find(FENCE, opened.end())
                if closed < 0 or self._only_calls(text[opened.end() : closed]):
                    return at
                # One block that is not a call, and nothing in the text is.
                self._text_from = self._spoken
                return len(text)
            if INCOMPLETE.fullmatch(text, at):
                return at
            at += 1
        return len(text) - (2 if text.endswith("``") else text.endswith("`"))

    def _only_calls(self, block: str) -> bool:
        """Whether nothing in a block keeps the text from having calls; an empty one may stand before them."""
        return all(_call(value, self._names) is not None for value in _values(block.strip()))


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
