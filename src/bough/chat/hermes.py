"""Hermes tool calls: `<tool_call>{"name": …, "arguments": {…}}</tool_call>` inside a reply's text.

A reply may contain several calls; the text around them is the thought. A reply without
a call is an answer. Tags inside `<think>` are reasoning, not calls.
"""

from __future__ import annotations

import json

from pydantic import ValidationError

from bough.chat.forms import MAX_CALLS, MalformedError, ParsedReply, check_length
from bough.types import Message, ToolCall

PROMPT = """To use a tool, write the call as JSON in its tags:
<tool_call>
{"name": "TOOL", "arguments": {"ARGUMENT": "VALUE"}}
</tool_call>"""
OPEN, CLOSE = "<tool_call>", "</tool_call>"


def parse(reply: str) -> ParsedReply:
    """The calls of a reply, and the text around them; without calls the action is the text itself."""
    check_length(reply)
    thinking, ended, spoken = reply.rpartition("</think>")
    if "<think>" in spoken:  # unfinished reasoning makes no calls
        spoken, _, rest = spoken.partition("<think>")
        thought = rest.strip()
    else:
        thought = thinking.removeprefix("<think>").strip() if ended else ""
    written, around = _split(spoken)
    if OPEN in around:
        raise MalformedError(f"The tool call is not closed with {CLOSE}. {PROMPT}")
    if CLOSE in around:
        raise MalformedError(f"{CLOSE} closes no tool call. {PROMPT}")
    if not written:
        return ParsedReply(thought=thought, action=around)
    calls = tuple(map(_read, written))
    return ParsedReply(
        thought="\n".join(filter(None, [thought, around])), action="\n".join(map(call_text, calls)), calls=calls
    )


def _split(text: str) -> tuple[list[str], str]:
    """What stands inside each pair of tags, and what stands around them. Linear in the length of the text."""
    written, around, at = list[str](), list[str](), 0
    while (opened := text.find(OPEN, at)) >= 0:
        closed = text.find(CLOSE, opened)
        if closed < 0:
            break
        around.append(text[at:opened])
        written.append(text[opened + len(OPEN) : closed])
        at = closed + len(CLOSE)
        if len(written) > MAX_CALLS:
            raise MalformedError(f"That is more than {MAX_CALLS} tool calls in one reply. {PROMPT}")
    around.append(text[at:])
    return written, "".join(around).strip()


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


def _read(text: str) -> ToolCall:
    try:
        # Models write line breaks inside strings; JSON forbids that, but the meaning is clear.
        call = json.loads(text, strict=False)
        arguments = call.get("arguments", {}) if isinstance(call, dict) else None
        if isinstance(arguments, str):
            arguments = json.loads(arguments, strict=False)
    except (ValueError, RecursionError) as error:  # also a number of more digits than Python reads
        raise MalformedError(f"The tool call is not JSON: {error}. {PROMPT}") from None
    if not isinstance(call, dict):
        raise MalformedError(f"The tool call is JSON but not an object. {PROMPT}")
    if not isinstance(call.get("name"), str) or not call["name"]:
        raise MalformedError(f'The tool call has no "name". {PROMPT}')
    if unknown := sorted(call.keys() - {"name", "arguments", "id"}):
        raise MalformedError(f'The tool call has "{unknown[0]}"; it takes "name" and "arguments" only. {PROMPT}')
    if not isinstance(arguments, dict):
        raise MalformedError(f'"arguments" of the tool call is not an object. {PROMPT}')
    try:
        read = ToolCall(name=call["name"], arguments=arguments)
    except ValidationError as error:
        raise MalformedError(f"The tool call cannot be read: {error.errors()[0]['msg']}. {PROMPT}") from None
    check_call(read)
    return read


def check_call(call: ToolCall) -> None:
    """Raises MalformedError for a call that JSON cannot carry: Python reads NaN, infinity and half a character."""
    try:
        json.dumps([call.name, call.arguments], ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        problem = "it contains half a surrogate pair" if isinstance(error, UnicodeError) else error
        raise MalformedError(f"The tool call is not JSON: {problem}. {PROMPT}") from None
