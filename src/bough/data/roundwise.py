"""Round-wise DPO rows: one history, two next actions, and why the second is worse.

`messages` is the history and ends with an observation; `chosen` and `rejected` are the next
replies (text, or a message). Agents of this data write `Act:` and `Think:` as well as `ACTION:`
and `THOUGHT:`; assistant messages are converted to the latter, so that one spelling is
learned. Pairs of one `trajectory_index` share a task.
"""

from __future__ import annotations

import re
from typing import Any

from bough.data.base import Format, Row, field, name, read_pair, reader, split_turns
from bough.data.messages import read_message, read_messages, read_tools
from bough.types import Message, Pair, Turn

_TAG = re.compile(r"^(?:(act|action)|think|thought)[ \t]*:", re.MULTILINE | re.IGNORECASE)
_ACTION = re.compile(r"^ACTION:(.*)", re.MULTILINE | re.DOTALL)


@reader
def read(row: Row) -> Pair:
    """A pair of one turn each."""
    history = [_normalised(message) for message, _ in read_messages(field(row, "messages", list), "messages")]
    chosen, rejected = (_read_turn(history, row, side) for side in ("chosen", "rejected"))
    index = name(row, "trajectory_index")
    return read_pair(
        row, history, [chosen], [rejected], "messages", "chosen", "rejected", "tools",
        tools=read_tools(row), unnamed=index and f"trajectory-{index}",
    )  # fmt: skip


def matches(row: Row) -> bool:
    """`messages` beside `chosen` or `rejected`, and no `prompt`."""
    sides = row.get("chosen") is not None or row.get("rejected") is not None
    return sides and row.get("messages") is not None and row.get("prompt") is None


def _read_turn(history: list[Message], row: Row, side: str) -> Turn:
    value: Any = field(row, side, (str, dict))
    reply = Message(role="assistant", content=value) if isinstance(value, str) else read_message(value, side)
    reply = _normalised(reply)
    _, [turn] = split_turns([*history, reply], begin=len(history))
    action = _ACTION.search(reply.content)
    return turn.model_copy(update={"action": action and action[1].strip()})


def _normalised(message: Message) -> Message:
    """The message with the tags of an assistant in capitals."""
    if message.role != "assistant":
        return message
    text = _TAG.sub(lambda tag: "ACTION:" if tag[1] else "THOUGHT:", message.content)
    return message.model_copy(update={"content": text})


FORMAT = Format(
    name="roundwise-dpo",
    about="a history (messages) and two next actions (chosen, rejected) with a reason",
    matches=matches,
    read=read,
)
