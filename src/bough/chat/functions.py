"""Calls: an optional thought in plain words, then one function call on a line of its own.

    I need the second box.
    click('3')

The convention of browser agents. Arguments are literals; positional ones go by their
place ("0", "1", …), since only the environment knows the names of its functions' parameters.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from pydantic import JsonValue

from bough.chat.forms import MAX_CALLS, MalformedError, ParsedReply, check_length
from bough.types import ToolCall

PROMPT = "Think if you like, then write one action as a call on the last line, for example: click('3')"
LONGEST_CALL = 20_000
_FENCE = re.compile(r"^\s*`{1,3}(?:\w+\s*$)?|`{1,3}\s*$")
_OPENING = re.compile(r"\s*[A-Za-z_]\w*\s*\(")


def parse(reply: str) -> ParsedReply:
    """The one call of a reply, and what stands before it."""
    lines = spoken(reply).strip().splitlines()
    found, tried = list[tuple[int, ToolCall]](), 0
    for number, line in enumerate(lines):
        if not _OPENING.match(bare := _FENCE.sub("", line)):
            continue
        tried += 1
        if tried > MAX_CALLS:
            raise MalformedError(f"That is more than {MAX_CALLS} lines with calls; take one action at a time. {PROMPT}")
        if (call := read_call(bare)) is not None:
            found.append((number, call))
    if not found:
        raise MalformedError(f"I found no action in that. {PROMPT}")
    if len(found) > 1:
        raise MalformedError(f"That is {len(found)} actions; take one at a time. {PROMPT}")
    number, call = found[0]
    thought = "\n".join(line for line in lines[:number] if line.strip("` \t") not in ("", "python"))
    return ParsedReply(thought=thought.strip(), action=spell(call), calls=(call,))


def write(action: str, thought: str = "") -> str:
    return f"{thought}\n{action}" if thought else action


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


def spell(call: ToolCall, name: Callable[[str], str] = str) -> str:
    """A call as it is written."""
    words = [repr(value) if key.isdecimal() else f"{key}={value!r}" for key, value in call.arguments.items()]
    return f"{name(call.name)}({', '.join(words)})"


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
