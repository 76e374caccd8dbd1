"""An agent's reply as environments get it: its text, and the tool calls that are in it.

The common form is Hermes': `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. A reply may
contain several calls, and the text around them is the thought; a reply without a call is an
answer. Models also write the form of their own chat template, and bare or fenced JSON whatever
they were told: these are understood, too. Tags inside `<think>` are reasoning, not calls.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

from pydantic import JsonValue, ValidationError

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


# One action per reply, in the three forms that text environments use.

Found = TypeVar("Found")


@dataclass(frozen=True)
class ActionForm:
    """`prompt` tells an agent how to write. `parse` reads a reply or raises MalformedError; `write` writes one."""

    prompt: str
    parse: Callable[[str], ParsedReply]
    write: Callable[[str, str], str]


# Functions. Arguments are literals; positional ones go by their place ("0", "1", …), since only the environment knows
# the names of its functions' parameters.

FUNCTION_PROMPT = "Think if you like, then write one action as a call on the last line, for example: click('3')"
LONGEST_CALL = 20_000
_FENCE = re.compile(r"^\s*`{1,3}(?:\w+\s*$)?|`{1,3}\s*$")
_OPENING = re.compile(r"\s*[A-Za-z_]\w*\s*\(")


def parse_function(reply: str) -> ParsedReply:
    """The one call of a reply, and what stands before it."""
    lines = spoken(reply).strip().splitlines()
    found, tried = list[tuple[int, ToolCall]](), 0
    for number, line in enumerate(lines):
        if not _OPENING.match(bare := _FENCE.sub("", line)):
            continue
        tried += 1
        if tried > MAX_CALLS:
            raise MalformedError(f"That is more than {MAX_CALLS} calls; take one action at a time. {FUNCTION_PROMPT}")
        if (call := read_call(bare)) is not None:
            found.append((number, call))
    number, call = _only(found, FUNCTION_PROMPT)
    thought = "\n".join(line for line in lines[:number] if line.strip("` \t") not in ("", "python"))
    return ParsedReply(thought=thought.strip(), action=function_text(call), calls=(call,))


def spoken(reply: str) -> str:
    """A reply without the reasoning before it."""
    check_length(reply)
    return reply.rpartition("</think>")[2]


def read_call(text: str) -> ToolCall | None:
    """The call that `text` is, or None: a name and literal arguments, nothing around it."""
    if len(text) > LONGEST_CALL or not _OPENING.match(text):
        return None
    try:
        expression = ast.parse(text.strip(), mode="eval").body
        if not isinstance(expression, ast.Call) or not isinstance(expression.func, ast.Name):
            return None
        arguments = {str(place): _literal(node) for place, node in enumerate(expression.args)}
        for keyword in expression.keywords:
            if keyword.arg is None:
                return None
            arguments[keyword.arg] = _literal(keyword.value)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return ToolCall(name=expression.func.id, arguments=arguments)


def function_text(call: ToolCall) -> str:
    """A call as it is written."""
    words = [repr(value) if key.isdecimal() else f"{key}={value!r}" for key, value in call.arguments.items()]
    return f"{call.name}({', '.join(words)})"


def _literal(node: ast.expr) -> JsonValue:
    value = ast.literal_eval(node)
    if not _plain(value):
        raise ValueError("not a value that a call may carry")
    plain: JsonValue = list(value) if isinstance(value, tuple) else value
    return plain


def _plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(item is not None and not isinstance(item, list | tuple) and _plain(item) for item in value)
    # Excludes numbers that JSON cannot write and integers with more digits than Python prints.
    return value is None or isinstance(value, str) or (isinstance(value, int | float) and abs(value) < 1e300)


def _only(actions: list[Found], prompt: str) -> Found:
    if not actions:
        raise MalformedError(f"I found no action in that. {prompt}")
    if len(actions) > 1:
        raise MalformedError(f"That is {len(actions)} actions; take one at a time. {prompt}")
    return actions[0]


# Commands.

COMMAND_PROMPT = """Answer in two lines, for example:
thought: The button is the one to click.
action: CLICK(selector="#ok")"""
_COMMAND = re.compile(r"^[^\S\n]*action[^\S\n]*:[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)
_BEFORE_COMMAND = re.compile(r"^\s*thought\s*:[ \t]*", re.IGNORECASE)


def parse_command(reply: str) -> ParsedReply:
    """The one command of a reply and the thought before it. Names are read in any case."""
    reply = spoken(reply)
    action = _only(list(_COMMAND.finditer(reply)), COMMAND_PROMPT)
    written = action[1].strip().strip("`")
    call = read_call(written)
    if call is None:
        raise MalformedError(f"{written[:200]!r} is not a command. {COMMAND_PROMPT}")
    thought = _BEFORE_COMMAND.sub("", reply[: action.start()], count=1).strip()
    calls = (call.model_copy(update={"name": call.name.lower()}),)
    return ParsedReply(thought=thought, action=command_text(call), calls=calls)


def write_command(action: str, thought: str = "") -> str:
    return f"thought: {thought}\naction: {action}"


def command_text(call: ToolCall) -> str:
    """A call as a command: an upper-case name, arguments in double quotes."""
    texts = {key: json.dumps(value, ensure_ascii=False) for key, value in call.arguments.items()}
    words = [text if key.isdecimal() else f"{key}={text}" for key, text in texts.items()]
    return f"{call.name.upper()}({', '.join(words)})"


# Lines. `Act:` and `Think:` mean the same, in any case; the thought may be missing. What follows the action's line is
# not read.

LINE_PROMPT = """Answer in two lines, for example:
THOUGHT: The mug may be on the shelf.
ACTION: go to shelf 1"""
ACTION_PROMPT = """Answer in one line, for example:
ACTION: go to shelf 1"""
_TAG = re.compile(r"[aA][cC][tT](?i:ion)?[ \t]*:")
_EDGE = re.compile(r"[ \t*]*")
_SAID = re.compile(r"\**[ \t]*(?:\r?\n[ \t]*)?([^\r\n]*)")
_THOUGHT = re.compile(r"^[ \t\r\n*]*(?:thought|think)[ \t]*:\**[ \t]*", re.IGNORECASE)


def parse_line(reply: str, prompt: str = LINE_PROMPT) -> ParsedReply:
    """The one action of a reply and the thought before it. `prompt` ends the message of an error."""
    check_length(reply)
    begin, action = _only(list(_actions(reply)), prompt)
    if not action:
        raise MalformedError(f"The action is empty. {prompt}")
    if _THOUGHT.match(action):
        raise MalformedError(f"The action comes last, after the thought. {prompt}")
    return ParsedReply(thought=_THOUGHT.sub("", reply[:begin], count=1).strip(), action=action)


def write_line(action: str, thought: str = "") -> str:
    return f"THOUGHT: {' '.join(thought.split())}\nACTION: {action}" if thought else f"ACTION: {action}"


def _actions(reply: str) -> Iterator[tuple[int, str]]:
    """Each action of a reply and where its line begins. One expression for all of it is much slower."""
    at = line = edge = 0
    while (tag := _TAG.search(reply, at)) is not None:
        begin = tag.start()
        if (new := reply.rfind("\n", at, begin) + 1) or not at:
            line, edge = new, _EDGE.match(reply, new).end()  # type: ignore[union-attr]  # it matches the empty text
        at = tag.end()
        if begin <= edge:
            begin = line
        # In the middle of a line only capitals are a tag: a thought may well speak of "the next action: …".
        elif reply[begin - 1] not in " \t" or not tag[0].startswith("ACTION"):
            continue
        said = _SAID.match(reply, at)
        assert said is not None  # it matches the empty text
        at = said.end()
        yield begin, said[1].strip().strip("`").strip()


FUNCTIONS = ActionForm(FUNCTION_PROMPT, parse_function, write)
COMMANDS = ActionForm(COMMAND_PROMPT, parse_command, write_command)
