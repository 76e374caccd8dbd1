"""Tool calls in the form that a model's own chat template gives them.

Templates differ in what stands around a call's JSON and in how its parts are called:

    {"name": "look", "parameters": {"at": "shelf"}}                         Llama 3
    [TOOL_CALLS] [{"name": "look", "arguments": {"at": "shelf"}}]           Mistral
    [TOOL_CALLS]look[ARGS]{"at": "shelf"}                                   later Mistral

The form is found in an example of a call that the template has rendered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from bough.chat import hermes
from bough.chat.forms import MAX_CALLS, MAX_REPLY, MalformedError
from bough.chat.hermes import check_call
from bough.types import ToolCall

DECODER = json.JSONDecoder(strict=False)
THOUGHT = "</think>"
# Llama 3 may write it before a call; no template shows it.
PYTHON_TAG = "<|python_tag|>"
# What templates and models write into a call besides its name and arguments.
OTHER_KEYS = {"id", "type"}
BETWEEN_CALLS = " \t\r\n,;"


@dataclass(frozen=True)
class CallForm:
    """`opening` and `closing` stand around a call, or a list of calls.

    The call is an object with `name_key` and `arguments_key`. With `separator`, a pattern, it is
    the name, the separator and the arguments instead.
    """

    opening: str
    closing: str
    name_key: str = "name"
    arguments_key: str = "arguments"
    separator: str | None = None

    @property
    def mark(self) -> str:
        """What a call begins with; a form without an opening has calls that are a whole reply."""
        return self.opening or PYTHON_TAG

    def split(self, text: str) -> tuple[str, list[ToolCall]]:
        """The text around the calls, and the calls; all of the text where one of them cannot be read."""
        thinking, ended, spoken = text.rpartition(THOUGHT)
        if len(text) > MAX_REPLY or "<think>" in spoken:
            return text, []
        try:
            around, calls = self._around(spoken) if self.opening else ("", self._whole(spoken))
        except (ValueError, RecursionError):  # also MalformedError and what pydantic raises
            return text, []
        return ((thinking + ended + around).rstrip(), calls) if 0 < len(calls) <= MAX_CALLS else (text, [])

    def _around(self, spoken: str) -> tuple[str, list[ToolCall]]:
        around, calls, at = list[str](), list[ToolCall](), 0
        while (opened := spoken.find(self.opening, at)) >= 0:
            around.append(spoken[at:opened])
            found, at = self._one(spoken, opened + len(self.opening))
            calls += found
            end = _skipped(spoken, at)
            at = end + len(self.closing) if self.closing and spoken.startswith(self.closing, end) else at
        return "".join([*around, spoken[at:]]), calls

    def _whole(self, spoken: str) -> list[ToolCall]:
        spoken, calls, at = spoken.strip().removeprefix(PYTHON_TAG).strip(), list[ToolCall](), 0
        while at < len(spoken):
            found, at = self._one(spoken, at)
            calls += found
            at = _skipped(spoken, at, BETWEEN_CALLS)
        return calls

    def _one(self, text: str, at: int) -> tuple[list[ToolCall], int]:
        at = _skipped(text, at)
        if self.separator is None:
            value, end = DECODER.raw_decode(text, at)
            return [self._read(one) for one in (value if isinstance(value, list) else [value])], end
        name = re.compile(rf"([\w.-]+){self.separator}").match(text, at)
        if name is None:
            raise MalformedError("the call has no name")
        arguments, end = DECODER.raw_decode(text, _skipped(text, name.end()))
        return [_call(name[1], arguments)], end

    def _read(self, value: Any) -> ToolCall:
        if not isinstance(value, dict) or value.keys() - {self.name_key, self.arguments_key, *OTHER_KEYS}:
            raise MalformedError("this is not a call")
        call = _call(value.get(self.name_key), value.get(self.arguments_key))
        id = value.get("id")
        return call.model_copy(update={"id": id}) if isinstance(id, str) else call


def form_of(example: str, call: ToolCall) -> CallForm | None:
    """The form in which `call` is written in `example`; None for Hermes, and for a form that cannot be read."""
    for at, value, end in _values(example):
        one = value[0] if isinstance(value, list) and len(value) == 1 else value
        keys = {key for key, each in one.items() if each == call.name} if isinstance(one, dict) else set()
        argument_keys = {key for key, each in one.items() if each == call.arguments} if keys else set()
        if len(keys) == len(argument_keys) == 1 and not one.keys() - keys - argument_keys - OTHER_KEYS:
            form = CallForm(example[:at].strip(), example[end:].strip(), keys.pop(), argument_keys.pop())
            return None if form == CallForm(hermes.OPEN, hermes.CLOSE) else form
        named = example.rfind(call.name, 0, at)
        if value == call.arguments and example[:named].strip():
            between = re.escape(example[named + len(call.name) : at].strip())
            separator = between.replace(call.id, r"[\w-]+") if call.id else between
            return CallForm(example[:named].strip(), example[end:].strip(), separator=separator) if separator else None
    return None


def _values(text: str) -> Iterator[tuple[int, Any, int]]:
    """The JSON objects and lists in a text, each with where it begins and ends."""
    for match in re.finditer(r"[\[{]", text):
        try:
            value, end = DECODER.raw_decode(text, match.start())
        except ValueError:
            continue
        yield match.start(), value, end


def _call(name: Any, arguments: Any) -> ToolCall:
    if isinstance(arguments, str):
        arguments = json.loads(arguments, strict=False)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise MalformedError("the call has no name or no arguments")
    try:
        call = ToolCall(name=name, arguments=arguments)
    except ValidationError as error:
        raise MalformedError(str(error)) from None
    hermes.check_call(call)
    return call


def _skipped(text: str, at: int, characters: str = " \t\r\n") -> int:
    while at < len(text) and text[at] in characters:
        at += 1
    return at


# Tool calls written as bare JSON or in a ```` ```json ```` block, as many models do whatever they were told.
# They are understood, so that such a model can act and be trained; an environment counts them as malformed.

BLOCK = re.compile(r"```[ \t]*(?:(?:json|tool_call|tool_code)[ \t]*)?\n(.*?)```", re.DOTALL | re.IGNORECASE)
OPENING = re.compile(r"```[ \t]*(?:(?:json|tool_call|tool_code)[ \t]*)?\n", re.IGNORECASE)
# An opening that is not complete.
INCOMPLETE = re.compile(r"```[ \t]*\w{0,9}[ \t]*")
SPACE = re.compile(r"\s*")
FENCE, FENCED_THOUGHT = "```", "</think>"


def read_calls(text: str, names: Collection[str]) -> tuple[ToolCall, ...]:
    """The calls of tools in `names`; none if anything in a block, or in a text of bare JSON, is not such a call."""
    blocks = BLOCK.findall(text) or [text]
    found: list[ToolCall] = []
    for block in blocks:
        for value in _fenced_values(block.strip()):
            call = _fenced_call(value, names)
            if call is None or len(found) == MAX_CALLS:
                return ()
            found.append(call)
    return tuple(found)


def split(text: str, names: Collection[str]) -> tuple[str, tuple[ToolCall, ...]]:
    """The text without its calls, and the calls of tools in `names`. What stands in `<think>` makes none."""
    thinking, ended, spoken = text.rpartition(FENCED_THOUGHT)
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
        ended = text.rfind(FENCED_THOUGHT, max(0, start - len(FENCED_THOUGHT)))
        self._spoken = max(self._spoken, ended + len(FENCED_THOUGHT) if ended >= 0 else 0)
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
        return all(_fenced_call(value, self._names) is not None for value in _fenced_values(block.strip()))


def _fenced_values(text: str) -> list[Any]:
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


def _fenced_call(value: Any, names: Collection[str]) -> ToolCall | None:
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
