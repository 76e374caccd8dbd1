"""An agent's reply as environments get it: its text, and the tool calls that are in it.

The common form is Hermes': `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. A reply may
contain several calls, and the text around them is the thought; a reply without a call is an
answer. Models also write the form of their own chat template, and bare or fenced JSON whatever
they were told: these are understood, too. Tags inside `<think>` are reasoning, not calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from pydantic import ValidationError

from bough.types import Message, ToolCall

PROMPT = """To use a tool, write the call as JSON in its tags:
<tool_call>
{"name": "TOOL", "arguments": {"ARGUMENT": "VALUE"}}
</tool_call>"""
OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, THOUGHT = "<think>", "</think>"
# Longer replies are not read: 32,000 tokens are about 130,000 characters.
MAX_REPLY = 1_000_000
MAX_CALLS = 100
# Models write line breaks inside strings; JSON forbids that, but the meaning is clear.
DECODER = json.JSONDecoder(strict=False)


class MalformedError(ValueError):
    """The reply is not in the agreed form. The message tells the agent what is wrong and how it is done."""


@dataclass(frozen=True)
class ParsedReply:
    """What a reply says: why, what is done, and the same as calls where the form has them."""

    thought: str
    action: str
    calls: tuple[ToolCall, ...] = ()


class Reply(str):
    """The text of a reply. `tool_calls` and `parsed` say what is in it.

    Calls that an engine delivered as data are passed on as they are; only a reply that
    came as text is parsed. What cannot be read, or is not JSON, raises `MalformedError`.
    """

    message: Message

    @classmethod
    def of(cls, given: Message | str) -> Reply:
        """The reply that a message is, or a text."""
        if isinstance(given, Reply):
            return given
        message = given if isinstance(given, Message) else Message(role="assistant", content=given)
        try:
            text = reply_text(message)
        except (ValueError, RecursionError):  # a call that JSON cannot carry, which `parsed` reports
            text = message.content
        reply = cls(text)
        reply.message = message
        return reply

    @cached_property
    def parsed(self) -> ParsedReply:
        """The thought, the action and the calls of the reply."""
        said = self.message
        if not said.tool_calls:
            return parse(self)
        if len(said.tool_calls) > MAX_CALLS:
            raise MalformedError(f"That is more than {MAX_CALLS} tool calls in one reply.")
        for call in said.tool_calls:
            check_call(call)
        action = "\n".join(map(call_text, said.tool_calls))
        return ParsedReply(thought=said.content.strip(), action=action, calls=tuple(said.tool_calls))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.parsed.calls


def parse(reply: str) -> ParsedReply:
    """The Hermes calls of a reply, and the text around them; without calls the action is the text itself."""
    check_length(reply)
    thinking, ended, spoken = reply.rpartition(THOUGHT)
    if THINK in spoken:  # unfinished reasoning makes no calls
        spoken, _, rest = spoken.partition(THINK)
        thought = rest.strip()
    else:
        thought = thinking.removeprefix(THINK).strip() if ended else ""
    written, outside, at = list[str](), list[str](), 0
    while (opened := spoken.find(OPEN, at)) >= 0 and (closed := spoken.find(CLOSE, opened)) >= 0:
        outside.append(spoken[at:opened])
        written.append(spoken[opened + len(OPEN) : closed])
        at = closed + len(CLOSE)
        if len(written) > MAX_CALLS:
            raise MalformedError(f"That is more than {MAX_CALLS} tool calls in one reply. {PROMPT}")
    around = "".join([*outside, spoken[at:]]).strip()
    if OPEN in around:
        raise MalformedError(f"The tool call is not closed with {CLOSE}. {PROMPT}")
    if CLOSE in around:
        raise MalformedError(f"{CLOSE} closes no tool call. {PROMPT}")
    if not written:
        return ParsedReply(thought=thought, action=around)
    calls = tuple(map(_read_tagged, written))
    return ParsedReply(
        thought="\n".join(filter(None, [thought, around])), action="\n".join(map(call_text, calls)), calls=calls
    )


def write(action: str, thought: str = "") -> str:
    """The reply that thinks `thought` and then says `action`: calls in their tags, or an answer."""
    return f"{thought}\n{action}" if thought else action


def call_text(call: ToolCall) -> str:
    """One call in its tags."""
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"{OPEN}\n{body}\n{CLOSE}"


def reply_text(reply: Message) -> str:
    """An assistant's reply as plain text, its tool calls in Hermes tags."""
    calls = [call_text(call) for call in reply.tool_calls]
    return "\n".join([reply.content, *calls] if reply.content else calls)


def check_length(reply: str) -> None:
    """Raises MalformedError where a reply is longer than any that is read."""
    if len(reply) > MAX_REPLY:
        raise MalformedError(f"The reply has {len(reply):,} characters; at most {MAX_REPLY:,} are read.")


def check_call(call: ToolCall) -> None:
    """Raises MalformedError for a call that JSON cannot carry: Python reads NaN, infinity and half a character."""
    try:
        json.dumps([call.name, call.arguments], ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        problem = "it contains half a surrogate pair" if isinstance(error, UnicodeError) else error
        raise MalformedError(f"The tool call is not JSON: {problem}. {PROMPT}") from None


def _read_tagged(text: str) -> ToolCall:
    try:
        call = json.loads(text, strict=False)
        arguments = call.get("arguments", {}) if isinstance(call, dict) else None
        if isinstance(arguments, str):
            arguments = json.loads(arguments, strict=False)
    except (ValueError, RecursionError) as error:  # also a number of more digits than Python reads
        raise MalformedError(f"The tool call is not JSON: {error}. {PROMPT}") from None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        raise MalformedError(f'The tool call is not an object with a "name". {PROMPT}')
    if unknown := sorted(call.keys() - {"name", "arguments", "id"}):
        raise MalformedError(f'The tool call has "{unknown[0]}"; it takes "name" and "arguments" only. {PROMPT}')
    if not isinstance(arguments, dict):
        raise MalformedError(f'"arguments" of the tool call is not an object. {PROMPT}')
    return _checked_call(call["name"], arguments)


def _checked_call(name: Any, arguments: Any) -> ToolCall:
    try:
        call = ToolCall(name=name, arguments=arguments)
    except ValidationError as error:
        raise MalformedError(f"The tool call cannot be read: {error.errors()[0]['msg']}. {PROMPT}") from None
    check_call(call)
    return call


# The form that a model's own chat template gives to calls. Templates differ in what stands around a call's JSON and
# in how its parts are called:
#
#     {"name": "look", "parameters": {"at": "shelf"}}                         Llama 3
#     [TOOL_CALLS] [{"name": "look", "arguments": {"at": "shelf"}}]           Mistral
#     [TOOL_CALLS]look[ARGS]{"at": "shelf"}                                   later Mistral

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

    def split(self, text: str) -> tuple[str, list[ToolCall]]:
        """The text around the calls, and the calls; all of the text where one of them cannot be read."""
        thinking, ended, spoken = text.rpartition(THOUGHT)
        if len(text) > MAX_REPLY or THINK in spoken:
            return text, []
        try:
            around, calls, at = "", list[ToolCall](), 0
            if not self.opening:
                whole = spoken.strip().removeprefix(PYTHON_TAG).strip()
                calls, at = list(map(self._read, _sequence(whole))), len(spoken)
            while self.opening and (opened := spoken.find(self.opening, at)) >= 0:
                around += spoken[at:opened]
                found, at = self._one(spoken, _skipped(spoken, opened + len(self.opening)))
                calls += found
                end = _skipped(spoken, at)
                at = end + len(self.closing) if self.closing and spoken.startswith(self.closing, end) else at
        except (ValueError, RecursionError):  # also MalformedError
            return text, []
        around += spoken[at:]
        return ((thinking + ended + around).rstrip(), calls) if 0 < len(calls) <= MAX_CALLS else (text, [])

    def _one(self, text: str, at: int) -> tuple[list[ToolCall], int]:
        if self.separator is None:
            value, end = DECODER.raw_decode(text, at)
            return list(map(self._read, value if isinstance(value, list) else [value])), end
        name = re.compile(rf"([\w.-]+){self.separator}").match(text, at)
        if name is None:
            raise MalformedError("the call has no name")
        arguments, end = DECODER.raw_decode(text, _skipped(text, name.end()))
        return [_called(name[1], arguments)], end

    def _read(self, value: Any) -> ToolCall:
        if not isinstance(value, dict) or value.keys() - {self.name_key, self.arguments_key, *OTHER_KEYS}:
            raise MalformedError("this is not a call")
        call = _called(value.get(self.name_key), value.get(self.arguments_key))
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
            return None if form == CallForm(OPEN, CLOSE) else form
        named = example.rfind(call.name, 0, at)
        if value == call.arguments and example[:named].strip():
            between = re.escape(example[named + len(call.name) : at].strip())
            separator = between.replace(call.id, r"[\w-]+") if call.id else between
            return CallForm(example[:named].strip(), example[end:].strip(), separator=separator) if separator else None
    return None


def _called(name: Any, arguments: Any) -> ToolCall:
    if isinstance(arguments, str):
        arguments = json.loads(arguments, strict=False)
    if not name or not isinstance(arguments, dict):
        raise MalformedError("the call has no name or no arguments")
    return _checked_call(name, arguments)


def _values(text: str) -> Iterator[tuple[int, Any, int]]:
    """The JSON objects and lists in a text, each with where it begins and ends."""
    for match in re.finditer(r"[\[{]", text):
        try:
            value, end = DECODER.raw_decode(text, match.start())
        except ValueError:
            continue
        yield match.start(), value, end


def _sequence(text: str) -> list[Any]:
    """The JSON values that a text is made of, those of a list one by one. Raises ValueError for any other text."""
    values, at = list[Any](), 0
    while at < len(text):
        value, at = DECODER.raw_decode(text, at)
        values += value if isinstance(value, list) else [value]
        at = _skipped(text, at, BETWEEN_CALLS)
    return values


def _skipped(text: str, at: int, characters: str = " \t\r\n") -> int:
    while at < len(text) and text[at] in characters:
        at += 1
    return at


# Calls as bare JSON or in a ```json block. An environment acts on them, so that such a model can be trained, and
# counts them as malformed.

BLOCK = re.compile(r"```[ \t]*(?:(?:json|tool_call|tool_code)[ \t]*)?\n(.*?)```", re.DOTALL | re.IGNORECASE)


def read_calls(text: str, names: Collection[str]) -> tuple[ToolCall, ...]:
    """The calls of tools in `names`; none if anything in a block, or in a text of bare JSON, is not such a call."""
    calls = []
    try:
        for value in chain.from_iterable(_sequence(block.strip()) for block in BLOCK.findall(text) or [text]):
            if not isinstance(value, dict) or value.get("name") not in names:
                return ()
            arguments = value.get("arguments", value.get("parameters", {}))
            if not isinstance(arguments, dict) or value.keys() - {"name", "arguments", "parameters", *OTHER_KEYS}:
                return ()
            calls.append(_checked_call(value["name"], arguments))
    except (ValueError, RecursionError):  # also MalformedError
        return ()
    return tuple(calls) if len(calls) <= MAX_CALLS else ()


def split(text: str, names: Collection[str]) -> tuple[str, tuple[ToolCall, ...]]:
    """The text without its calls, and the calls of tools in `names`. What stands in `<think>` makes none."""
    thinking, ended, spoken = text.rpartition(THOUGHT)
    calls = () if THINK in spoken else read_calls(spoken.strip(), names)
    if not calls:
        return text, ()
    return (thinking + ended + (BLOCK.sub("", spoken) if BLOCK.search(spoken) else "")).rstrip(), calls
