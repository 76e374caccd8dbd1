"""TRL's rows, conversational or plain strings; round-wise pairs; and OpenAI's fine-tuning rows.

| kind | columns | becomes |
|---|---|---|
| language modelling | `messages` | a trajectory |
| prompt-completion | `prompt`, `completion` | a trajectory that starts with the whole prompt |
| preference | `prompt`, `chosen`, `rejected` | a pair |
| preference, implicit prompt | `chosen`, `rejected`: whole conversations | a pair from where they part |
| unpaired preference (KTO) | `prompt`, `completion`, `label` | a trajectory whose `success` is the label |

A string prompt is what the user says, a string completion what the assistant replies.
`tools` is a list or JSON text. What TRL has no column for stands in the columns and
the message keys of `base.py`, which TRL ignores.
"""

from __future__ import annotations

import json
import re
from itertools import takewhile
from typing import Any

from bough.data.base import (
    AnnotatedMessage,
    Format,
    Row,
    Sample,
    Spoken,
    context,
    faithful,
    field,
    given,
    name,
    not_group,
    read_message,
    read_messages,
    read_pair,
    read_tools,
    read_trajectory,
    read_turns,
    reader,
    said,
    split_turns,
    spoken,
    write_columns,
    write_message,
    write_turns,
)
from bough.errors import RowError
from bough.types import Message, Pair, Role, Trajectory


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
    known = not_group(record, "trl")
    start = [write_message(message) for message in known.start]
    if isinstance(known, Pair):
        row: Row = {
            "prompt": start,
            "chosen": write_turns(known.chosen),
            "rejected": write_turns(known.rejected),
        }
    else:
        turns = write_turns(known.turns)
        replied = any(message.role == "assistant" for message in known.start)
        row = {"prompt": start, "completion": turns} if replied else {"messages": start + turns}
    return faithful("trl", record, {**row, **given(tools=known.tools), **write_columns(known)}, read)


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
    whole = all(side and side[0][0].role != "assistant" for side in (chosen, rejected))
    if prompt is None or (isinstance(prompt, str) and whole):
        # From the last reply up to which they are equal.
        same = sum(1 for _ in takewhile(lambda both: both[0][0] == both[1][0], zip(chosen, rejected, strict=False)))
        shared = range(min(same, len(chosen) - 1, len(rejected) - 1), 0, -1)
        begin = next((i for i in shared if chosen[i][0].role == rejected[i][0].role == "assistant"), 0)
        if not begin:
            why = '"chosen" and "rejected" do not diverge at a reply'
            raise RowError("missing_field", f'there is no "prompt", and {why}')
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
    sides = []
    for side in ("chosen", "rejected"):
        value: Any = field(row, side, (str, dict))
        reply = Message(role="assistant", content=value) if isinstance(value, str) else read_message(value, side)
        reply = _normalised(reply)
        _, [turn] = split_turns([*history, reply], begin=len(history))
        action = _ACTION.search(reply.content)
        sides.append([turn.model_copy(update={"action": action and action[1].strip()})])
    index = name(row, "trajectory_index")
    return read_pair(
        row, history, sides[0], sides[1], "messages", "chosen", "rejected", "tools",
        tools=read_tools(row), unnamed=index and f"trajectory-{index}",
    )  # fmt: skip


def _normalised(message: Message) -> Message:
    """The message with the tags of an assistant in capitals."""
    if message.role != "assistant":
        return message
    text = _TAG.sub(lambda tag: "ACTION:" if tag[1] else "THOUGHT:", message.content)
    return message.model_copy(update={"content": text})


ROUNDWISE = Format(
    name="roundwise-dpo",
    about="a history (messages) and two next actions (chosen, rejected) with a reason",
    matches=lambda row: (
        any(row.get(side) is not None for side in ("chosen", "rejected"))
        and row.get("messages") is not None
        and row.get("prompt") is None
    ),
    read=read_rounds,
)


# OpenAI's fine-tuning rows: conversations (`messages`, `tools`), and preferences, which have an `input` of `messages`
# and `tools`, a `preferred_output` and a `non_preferred_output`, each a list of messages. A conversation is known by
# tool calls whose arguments are JSON text; one without such a call is TRL's, which reads it the same.
# OpenAI refuses rows and messages with keys of other programs. Written rows therefore have the conversation and which
# replies are trained, and nothing else. A record whose conversation cannot be expressed (reasoning, hints) is refused.

SIDES = ("preferred_output", "non_preferred_output")


@reader
def read_openai(row: Row) -> Trajectory | Pair:
    """A whole conversation, each assistant message trained unless its `weight` is 0; or a pair."""
    if all(row.get(side) is None for side in SIDES):
        start, turns = read_turns(read_messages(field(row, "messages", list), "messages"))
        return read_trajectory(row, start, turns, "messages", "tools", tools=read_tools(row))
    asked: Row = field(row, "input", dict)
    prompt = read_messages(field(asked, "messages", list, '"input" '), "input.messages")
    sides = [read_messages(field(row, side, list), side) for side in SIDES]
    (start, chosen), (_, rejected) = (read_turns(prompt + side, begin=len(prompt)) for side in sides)
    return read_pair(row, start, chosen, rejected, "input", *SIDES, tools=read_tools(asked))


def write_openai(record: Sample) -> Row:
    """The row of a trajectory or a pair; OpenAI has no row for a group of attempts."""
    known = not_group(record, "openai")
    begin, parallel = context(known.start), known.info.get("parallel_tool_calls")
    more = given(tools=known.tools, parallel_tool_calls=parallel if isinstance(parallel, bool) else None)
    if isinstance(known, Pair):
        chosen, rejected = (_openai_messages(begin + spoken(side)) for side in (known.chosen, known.rejected))
        start = len(begin)
        sides = dict(zip(SIDES, (chosen[start:], rejected[start:]), strict=True))
        row: Row = {"input": {"messages": chosen[:start], **more}, **sides}
    else:
        row = {"messages": _openai_messages(begin + spoken(known.turns), weights=True), **more}
    return faithful("openai", record, row, read_openai, said)


def matches_openai(row: Row) -> bool:
    """A preference, or `messages` in which a tool call's arguments are text."""
    if row.get("input") is not None and any(row.get(side) is not None for side in SIDES):
        return True
    calls = [call for message in _objects(row.get("messages")) for call in _objects(message.get("tool_calls"))]
    functions = _objects([call.get("function") for call in calls])
    return any(isinstance(function.get("arguments"), str) for function in functions)


def _objects(value: Any) -> list[Row]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _openai_messages(conversation: list[Spoken], *, weights: bool = False) -> list[Row]:
    """The messages of a conversation. OpenAI wants an id for every call, also where a record has none."""
    rows, waiting = list[Row](), list[str]()
    for message, trained in conversation:
        ids = [call.id or f"call_{len(rows)}_{i}" for i, call in enumerate(message.tool_calls)]
        waiting = list(ids) or waiting
        answered = message.tool_call_id or (waiting.pop(0) if message.role == "tool" and waiting else None)
        calls = []
        for id, call in zip(ids, message.tool_calls, strict=True):
            function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
            calls.append({"id": id, "type": "function", "function": function})
        rows.append(
            {"role": message.role, "content": message.content}
            | given(tool_calls=calls, tool_call_id=answered, name=message.name)
            | ({"weight": 0} if weights and message.role == "assistant" and not trained else {})
        )
    return rows


OPENAI = Format(
    name="openai",
    about="OpenAI fine-tuning: messages with JSON text in tool calls; preferences (preferred_output)",
    matches=matches_openai,
    read=read_openai,
    write=write_openai,
)
