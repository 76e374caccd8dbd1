"""TRL's rows, conversational or plain strings, and round-wise pairs.

| kind | columns | becomes |
|---|---|---|
| language modelling | `messages` | a trajectory |
| prompt-completion | `prompt`, `completion` | a trajectory that starts with the whole prompt |
| preference | `prompt`, `chosen`, `rejected` | a pair |
| preference, implicit prompt | `chosen`, `rejected`: whole conversations | a pair from where they part |
| unpaired preference (KTO) | `prompt`, `completion`, `label` | a trajectory whose `success` is the label |

A string prompt is what the user says, a string completion what the assistant replies.
`tools` is a list or JSON text. What TRL has no column for stands in the columns of `base.py`
and the message keys of `messages.py`, which TRL ignores.
"""

from __future__ import annotations

import re
from typing import Any

from bough.data.base import (
    Format,
    Row,
    Sample,
    faithful,
    field,
    given,
    name,
    read_pair,
    read_trajectory,
    reader,
    split_turns,
    write_ending,
    write_id,
    write_task,
)
from bough.data.messages import (
    AnnotatedMessage,
    read_message,
    read_messages,
    read_tools,
    read_turns,
    write_message,
    write_turns,
)
from bough.errors import RowError
from bough.types import Group, Message, Pair, Role, Trajectory, Turn


@reader
def read(row: Row) -> Trajectory | Pair:
    """The trajectory or pair of a row."""
    if row.get("chosen") is not None or row.get("rejected") is not None:
        return _read_preference(row)
    if row.get("prompt") is not None or row.get("completion") is not None:
        return _read_completion(row)
    start, turns = read_turns(read_messages(field(row, "messages", list), "messages"))
    return read_trajectory(row, start, turns, "messages", "tools", tools=read_tools(row))


def write(record: Sample) -> Row:
    """The row of a trajectory or a pair; a group of attempts has no row in TRL."""
    if isinstance(record, Group):
        raise RowError("cannot_express", "trl cannot express a group; write its attempts as separate rows")
    start = [write_message(message) for message in record.start]
    if isinstance(record, Pair):
        row: Row = {"prompt": start, "chosen": write_turns(record.chosen), "rejected": write_turns(record.rejected)}
        known = given(reason=record.reason, margin=record.margin)
    else:
        turns = write_turns(record.turns)
        replied = any(message.role == "assistant" for message in record.start)
        row = {"prompt": start, "completion": turns} if replied else {"messages": start + turns}
        known = {**write_id(record), **write_ending(record)}
    row = {**row, **given(tools=record.tools), **write_task(record.task), **known, **record.info}
    return faithful("trl", record, row, read)


def matches(row: Row) -> bool:
    """`messages`; `prompt` and `completion`, no `label`; two of `prompt`, `chosen` and `rejected`."""
    columns = {key for key, value in row.items() if value is not None}
    preference = len(columns & {"prompt", "chosen", "rejected"}) >= 2
    return "messages" in columns or preference or ({"prompt", "completion"} <= columns and "label" not in columns)


def _read_completion(row: Row, *own: str) -> Trajectory:
    prompt, completion = _read_side(row, "prompt", "user"), _read_side(row, "completion", "assistant")
    start, turns = read_turns(prompt + completion, begin=len(prompt))
    return read_trajectory(row, start, turns, "prompt", "completion", "tools", *own, tools=read_tools(row))


def _read_preference(row: Row) -> Pair:
    chosen, rejected = _read_side(row, "chosen", "assistant"), _read_side(row, "rejected", "assistant")
    prompt = row.get("prompt")
    # Some datasets repeat the prompt as text beside two whole conversations; TRL reads the conversations.
    if prompt is None or (isinstance(prompt, str) and _is_whole(chosen) and _is_whole(rejected)):
        begin = _divergence(chosen, rejected)
        both = chosen, rejected
    else:
        said = _read_side(row, "prompt", "user")
        begin = len(said)
        both = said + chosen, said + rejected
    (start, better), (_, worse) = (read_turns(side, begin) for side in both)
    return read_pair(row, start, better, worse, "prompt", "chosen", "rejected", "tools", tools=read_tools(row))


def _read_side(row: Row, key: str, role: Role) -> list[AnnotatedMessage]:
    """The messages of a column: a list of them, or a text that `role` says."""
    value = field(row, key, (str, list))
    return [(Message(role=role, content=value), {})] if isinstance(value, str) else read_messages(value, key)


def _is_whole(said: list[AnnotatedMessage]) -> bool:
    return bool(said) and said[0][0].role != "assistant"


def _divergence(chosen: list[AnnotatedMessage], rejected: list[AnnotatedMessage]) -> int:
    """The index of the first reply in which two conversations differ."""
    same = 0
    for (left, _), (right, _) in zip(chosen, rejected, strict=False):
        if left != right:
            break
        same += 1
    for i in range(min(same, len(chosen) - 1, len(rejected) - 1), 0, -1):
        if chosen[i][0].role == rejected[i][0].role == "assistant":
            return i
    raise RowError("missing_field", 'there is no "prompt", and "chosen" and "rejected" do not diverge at a reply')


FORMAT = Format(
    name="trl",
    about="TRL: messages, prompt/completion or prompt/chosen/rejected, as messages or strings",
    matches=matches,
    read=read,
    write=write,
)


# A row with a label is a judged reply. The reward `label` (1 or 0) marks it: SFT must not imitate one with a 0.

LABEL = "label"


@reader
def read_kto(row: Row) -> Trajectory:
    """A trajectory that starts with the whole prompt."""
    label = field(row, LABEL, (bool, int, float))
    if label not in (0, 1):
        raise RowError("wrong_type", '"label" is a number other than 0 and 1; it must be true or false')
    found = _read_completion(row, LABEL)
    return found.model_copy(update={"success": bool(label), "rewards": {**found.rewards, LABEL: float(label)}})


KTO = Format(
    name="kto",
    about="KTO: prompt, completion and a label, true for a good reply and false for a bad one",
    matches=lambda row: all(row.get(column) is not None for column in ("prompt", "completion", LABEL)),
    read=read_kto,
)


# Round-wise DPO: `messages` is the history and ends with an observation; `chosen` and `rejected` are the next replies
# (text, or a message). Agents of this data write `Act:` and `Think:` as well as `ACTION:` and `THOUGHT:`; assistant
# messages are converted to the latter, so that one spelling is learned. Pairs of one `trajectory_index` share a task.

_TAG = re.compile(r"^(?:(act|action)|think|thought)[ \t]*:", re.MULTILINE | re.IGNORECASE)
_ACTION = re.compile(r"^ACTION:(.*)", re.MULTILINE | re.DOTALL)


@reader
def read_rounds(row: Row) -> Pair:
    """A pair of one turn each."""
    history = [_normalised(message) for message, _ in read_messages(field(row, "messages", list), "messages")]
    chosen, rejected = (_read_turn(history, row, side) for side in ("chosen", "rejected"))
    index = name(row, "trajectory_index")
    return read_pair(
        row, history, [chosen], [rejected], "messages", "chosen", "rejected", "tools",
        tools=read_tools(row), unnamed=index and f"trajectory-{index}",
    )  # fmt: skip


def matches_rounds(row: Row) -> bool:
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


ROUNDWISE = Format(
    name="roundwise-dpo",
    about="a history (messages) and two next actions (chosen, rejected) with a reason",
    matches=matches_rounds,
    read=read_rounds,
)
