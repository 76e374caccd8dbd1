"""TRL's rows, conversational or plain strings.

| kind | columns | becomes |
|---|---|---|
| language modelling | `messages` | a trajectory |
| prompt-completion | `prompt`, `completion` | a trajectory that starts with the whole prompt |
| preference | `prompt`, `chosen`, `rejected` | a pair |
| preference, implicit prompt | `chosen`, `rejected`: whole conversations | a pair from where they part |

A string prompt is what the user says, a string completion what the assistant replies.
`tools` is a list or JSON text. Unpaired preferences (a `label` beside the completion) are
`kto.py`'s: half of them are bad examples. What TRL has no column for stands in the
columns of `columns.py` and the message keys of `messages.py`, which TRL ignores.
"""

from __future__ import annotations

from bough.data.base import (
    Format,
    Row,
    Sample,
    faithful,
    field,
    given,
    read_pair,
    read_trajectory,
    reader,
    write_ending,
    write_id,
    write_task,
)
from bough.data.messages import AnnotatedMessage, read_messages, read_tools, read_turns, write_message, write_turns
from bough.errors import RowError
from bough.types import Group, Message, Pair, Role, Trajectory


@reader
def read(row: Row) -> Trajectory | Pair:
    """The trajectory or pair of a row."""
    if row.get("chosen") is not None or row.get("rejected") is not None:
        return _read_preference(row)
    if row.get("prompt") is not None or row.get("completion") is not None:
        prompt, completion = read_side(row, "prompt", "user"), read_side(row, "completion", "assistant")
        start, turns = read_turns(prompt + completion, begin=len(prompt))
        return read_trajectory(row, start, turns, "prompt", "completion", "tools", tools=read_tools(row))
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


def _read_preference(row: Row) -> Pair:
    chosen, rejected = read_side(row, "chosen", "assistant"), read_side(row, "rejected", "assistant")
    prompt = row.get("prompt")
    # Some datasets repeat the prompt as text beside two whole conversations; TRL reads the conversations.
    if prompt is None or (isinstance(prompt, str) and _is_whole(chosen) and _is_whole(rejected)):
        begin = _divergence(chosen, rejected)
        both = chosen, rejected
    else:
        said = read_side(row, "prompt", "user")
        begin = len(said)
        both = said + chosen, said + rejected
    (start, better), (_, worse) = (read_turns(side, begin) for side in both)
    return read_pair(row, start, better, worse, "prompt", "chosen", "rejected", "tools", tools=read_tools(row))


def read_side(row: Row, key: str, role: Role) -> list[AnnotatedMessage]:
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
