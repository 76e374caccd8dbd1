"""One action per reply, in the three forms that text environments use.

functions   an optional thought in plain words, then one call on a line of its own, as browser agents write: click('3')
commands    `thought: …`, then `action: CLICK(selector="#ok")`, as the DPO-Driver report has its agents write
lines       `THOUGHT: …`, then `ACTION: go to shelf 1`, as AgentBench has its household agents write
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from pydantic import JsonValue

from bough.chat.tool_calls import MAX_CALLS, MalformedError, ParsedReply, check_length, write
from bough.types import ToolCall

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
