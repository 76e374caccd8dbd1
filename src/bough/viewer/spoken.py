"""A reply taken apart for the page: thoughts, tool calls, actions, and whatever else was said.

A tool call may be structured, or written into the text in Hermes tags; pages show both
the same way. A call that cannot be read is shown as it was written.
"""

from __future__ import annotations

import json
import re
from typing import Any

from bough.speech import hermes
from bough.speech.base import MalformedError
from bough.types import Message, ToolCall, Turn

# A reply longer than this is not taken apart; the page shows its beginning as it is.
MAX_PARSED = 200_000
MAX_LABEL = 600
_OPENING = re.compile(r"\s*(?:THOUGHT|THINK|ACTION|ACT):", re.IGNORECASE)
_ACTION = re.compile(r"^(?:ACTION|ACT):", re.IGNORECASE | re.MULTILINE)

Part = dict[str, Any]


def parts(message: Message, action: str | None = None) -> list[Part]:
    """What a reply consists of, in order.

    Each part has a `kind`: "thought", "action", "reply" or "broken call" with a `text`,
    or "call" with a `name` and `arguments`. `action` is what the environment was given.
    """
    found = [_text("thought", message.reasoning)] if message.reasoning else []
    found += _spoken(message.content, action)
    found += [_call(call) for call in message.tool_calls]
    return [part for part in found if part["kind"] == "call" or part["text"]]


def label(turn: Turn) -> str:
    """What a turn did, on one line: its calls if it has any, else its action."""
    found = parts(turn.reply, turn.action)
    calls = [_written(part) if part["kind"] == "call" else part["text"] for part in found if "call" in part["kind"]]
    said = turn.reply.content if turn.action is None else turn.action
    return " ".join(("; ".join(calls) or said)[:MAX_LABEL].split())


def _spoken(content: str, action: str | None) -> list[Part]:
    content = content.strip()
    if len(content) > MAX_PARSED:
        return [_text("reply", content)]
    if hermes.OPEN in content:
        return _with_calls(content)
    if content.startswith("<think>") and (action is None or content != action.strip()):
        # What follows the last end: a reply may think more than once, and each copy of the rest takes time.
        thought, ended, rest = content.removeprefix("<think>").rpartition("</think>")
        return [_text("thought", thought), *_lines(rest.strip(), action)] if ended else [_text("thought", rest)]
    return _lines(content, action)


def _with_calls(content: str) -> list[Part]:
    try:
        said = hermes.parse(content)
    except MalformedError:
        before, tag, rest = content.partition(hermes.OPEN)
        return [_text("thought", before), _text("broken call", tag + rest)]
    answer = [_text("reply", said.action)] if not said.calls else []
    return [_text("thought", said.thought), *answer, *map(_call, said.calls)]


def _lines(content: str, action: str | None) -> list[Part]:
    """The action itself, or `THOUGHT: …` and `ACTION: …` lines; anything else is a plain reply."""
    if action is not None and content == action.strip():
        return [_text("action", content)]
    opening = _OPENING.match(content)
    if opening is None:
        return [_text("reply", content)]
    acted = _ACTION.search(content)
    if acted is None:
        return [_text("reply", content)]
    return [_text("thought", content[opening.end() : acted.start()]), _text("action", content[acted.end() :])]


def _text(kind: str, text: str) -> Part:
    return {"kind": kind, "text": text.strip()}


def _call(call: ToolCall) -> Part:
    return {"kind": "call", "name": call.name, "arguments": call.arguments}


def _written(part: Part) -> str:
    """A call as one would write it in Python."""
    words = [f"{name}={_value(value)}" for name, value in part["arguments"].items()]
    return f"{part['name']}({', '.join(words)})"


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else f'"{value}"'
