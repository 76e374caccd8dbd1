"""Lines: `THOUGHT: …`, then `ACTION: go to shelf 1`, as AgentBench has its household agents write; or the action alone.

`Act:` and `Think:` mean the same, in any case. What follows the action's line is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bough.chat.forms import MalformedError, ParsedReply, check_length

PROMPT = """Answer in two lines, for example:
THOUGHT: The mug may be on the shelf.
ACTION: go to shelf 1"""
ACTION_PROMPT = """Answer in one line, for example:
ACTION: go to shelf 1"""
_TAG = re.compile(r"[aA][cC][tT](?i:ion)?[ \t]*:")
_EDGE = re.compile(r"[ \t*]*")
_SAID = re.compile(r"\**[ \t]*(?:\r?\n[ \t]*)?([^\r\n]*)")
_THOUGHT = re.compile(r"^[ \t\r\n*]*(?:thought|think)[ \t]*:\**[ \t]*", re.IGNORECASE)


def parse(reply: str, prompt: str = PROMPT) -> ParsedReply:
    """The one action of a reply and the thought before it. `prompt` ends the message of an error."""
    check_length(reply)
    actions = list(_actions(reply))
    if not actions:
        raise MalformedError(f"I found no action in that. {prompt}")
    if len(actions) > 1:
        raise MalformedError(f"That is {len(actions)} actions; take one at a time. {prompt}")
    begin, action = actions[0]
    if not action:
        raise MalformedError(f"The action is empty. {prompt}")
    if _THOUGHT.match(action):
        raise MalformedError(f"The action comes last, after the thought. {prompt}")
    return ParsedReply(thought=_THOUGHT.sub("", reply[:begin], count=1).strip(), action=action)


def _actions(reply: str) -> Iterator[tuple[int, str]]:
    """Each action of a reply and where its line begins. One expression for all of it is much slower."""
    at = line = edge = 0
    while (tag := _TAG.search(reply, at)) is not None:
        begin = tag.start()
        if (new := reply.rfind("\n", at, begin) + 1) or not at:
            line, edge = new, _edge(reply, new)
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


def _edge(reply: str, line: int) -> int:
    """Where the spaces and asterisks at the start of a line end."""
    found = _EDGE.match(reply, line)
    return found.end() if found else line


def write(action: str, thought: str = "") -> str:
    return f"THOUGHT: {' '.join(thought.split())}\nACTION: {action}" if thought else f"ACTION: {action}"
