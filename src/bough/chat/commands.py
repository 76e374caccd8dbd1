"""Commands: `thought: …`, then `action: CLICK(selector="#ok")`, as the DPO-Driver report has its agents write."""

from __future__ import annotations

import json
import re

from bough.chat.forms import MalformedError, ParsedReply
from bough.chat.functions import read_call, spoken
from bough.types import ToolCall

PROMPT = """Answer in two lines, for example:
thought: The button is the one to click.
action: CLICK(selector="#ok")"""
_ACTION = re.compile(r"^[^\S\n]*action[^\S\n]*:[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)
_THOUGHT = re.compile(r"^\s*thought\s*:[ \t]*", re.IGNORECASE)


def parse(reply: str) -> ParsedReply:
    """The one command of a reply and the thought before it. Names are read in any case."""
    reply = spoken(reply)
    actions = list(_ACTION.finditer(reply))
    if not actions:
        raise MalformedError(f"I found no action in that. {PROMPT}")
    if len(actions) > 1:
        raise MalformedError(f"That is {len(actions)} actions; take one at a time. {PROMPT}")
    written = actions[0][1].strip().strip("`")
    call = read_call(written)
    if call is None:
        raise MalformedError(f"{written[:200]!r} is not a command. {PROMPT}")
    thought = _THOUGHT.sub("", reply[: actions[0].start()], count=1).strip()
    return ParsedReply(
        thought=thought, action=spell(call), calls=(call.model_copy(update={"name": call.name.lower()}),)
    )


def write(action: str, thought: str = "") -> str:
    return f"thought: {thought}\naction: {action}"


def spell(call: ToolCall) -> str:
    """A call as a command: an upper-case name, arguments in double quotes."""
    words = [
        text if key.isdecimal() else f"{key}={text}"
        for key, value in call.arguments.items()
        for text in [json.dumps(value, ensure_ascii=False)]
    ]
    return f"{call.name.upper()}({', '.join(words)})"
