"""Lines: `THOUGHT: …`, then `ACTION: go to shelf 1`, as AgentBench has its household agents write; or the action alone.

`Act:` and `Think:` mean the same, in any case. What follows the action's line is not read.
"""

from __future__ import annotations

import re

from bough.speech.base import MalformedError, ParsedReply, check_length

PROMPT = """Answer in two lines, for example:
THOUGHT: The mug may be on the shelf.
ACTION: go to shelf 1"""
# In the middle of a line only capitals are a tag: a thought may well speak of "the next action: …".
_ACTION = re.compile(
    r"(?:^[ \t*]*(?i:action|act)|(?<=[ \t])ACTION)[ \t]*:\**[ \t]*(?:\r?\n[ \t]*)?([^\r\n]*)", re.MULTILINE
)
_THOUGHT = re.compile(r"^[ \t\r\n*]*(?:thought|think)[ \t]*:\**[ \t]*", re.IGNORECASE)


def parse(reply: str) -> ParsedReply:
    """The one action of a reply and the thought before it."""
    check_length(reply)
    actions = list(_ACTION.finditer(reply))
    if not actions:
        raise MalformedError(f"I found no action in that. {PROMPT}")
    if len(actions) > 1:
        raise MalformedError(f"That is {len(actions)} actions; take one at a time. {PROMPT}")
    action = actions[0][1].strip().strip("`").strip()
    if not action:
        raise MalformedError(f"The action is empty. {PROMPT}")
    if _THOUGHT.match(action):
        raise MalformedError(f"The action comes last, after the thought. {PROMPT}")
    return ParsedReply(thought=_THOUGHT.sub("", reply[: actions[0].start()], count=1).strip(), action=action)


def write(action: str, thought: str = "") -> str:
    return f"THOUGHT: {' '.join(thought.split())}\nACTION: {action}" if thought else f"ACTION: {action}"
