"""OpenAI's fine-tuning rows: conversations (`messages`, `tools`), and preferences.

A preference has an `input` of `messages` and `tools`, a `preferred_output` and a
`non_preferred_output`, each a list of messages. A conversation is known by tool calls whose
arguments are JSON text; one without such a call is TRL's, which reads it the same.

OpenAI refuses rows and messages with keys of other programs. Written rows therefore have the
conversation and which replies are trained, and nothing else: ids, tasks, rewards and `info` are
left out (but for `parallel_tool_calls`). A record whose conversation cannot be expressed (reasoning, hints) is refused.
"""

from __future__ import annotations

import json
from typing import Any

from bough.data.base import (
    Format,
    Row,
    Sample,
    Spoken,
    context,
    field,
    given,
    optional,
    read_pair,
    read_trajectory,
    reader,
    same_conversation,
    spoken,
)
from bough.data.messages import read_messages, read_tools, read_turns
from bough.errors import RowError
from bough.types import Group, Pair, ToolCall, Trajectory

PARALLEL = "parallel_tool_calls"
SIDES = ("preferred_output", "non_preferred_output")


@reader
def read(row: Row) -> Trajectory | Pair:
    """A whole conversation, each assistant message trained unless its `weight` is 0; or a pair."""
    if any(row.get(side) is not None for side in SIDES):
        return _read_preference(row)
    start, turns = read_turns(read_messages(field(row, "messages", list), "messages"))
    return read_trajectory(row, start, turns, "messages", "tools", tools=read_tools(row))


def write(record: Sample) -> Row:
    """The row of a trajectory or a pair; OpenAI has no row for a group of attempts."""
    if isinstance(record, Group):
        raise RowError("cannot_express", "openai cannot express a group; write its attempts as separate rows")
    parallel = record.info.get(PARALLEL)
    more = given(tools=record.tools, parallel_tool_calls=parallel if isinstance(parallel, bool) else None)
    if isinstance(record, Pair):
        begin = [context(message) for message in record.start]
        chosen, rejected = (_write(begin + spoken(side)) for side in (record.chosen, record.rejected))
        start = len(begin)
        row: Row = {
            "input": {"messages": chosen[:start], **more},
            "preferred_output": chosen[start:],
            "non_preferred_output": rejected[start:],
        }
    else:
        said = [*map(context, record.start), *spoken(record.turns)]
        row = {"messages": _write(said, weights=True), **more}
    return same_conversation("openai", record, row, read)


def matches(row: Row) -> bool:
    """A preference, or `messages` in which a tool call's arguments are text."""
    if row.get("input") is not None and any(row.get(side) is not None for side in SIDES):
        return True
    calls = [call for message in _objects(row.get("messages")) for call in _objects(message.get("tool_calls"))]
    return any(
        isinstance(function.get("arguments"), str) for call in calls for function in _objects([call.get("function")])
    )


def _read_preference(row: Row) -> Pair:
    asked: Row = field(row, "input", dict)
    prompt = read_messages(field(asked, "messages", list, '"input" '), "input.messages")
    sides = [read_messages(field(row, side, list), side) for side in SIDES]
    (start, chosen), (_, rejected) = (read_turns(prompt + side, begin=len(prompt)) for side in sides)
    parallel = optional(asked, PARALLEL, bool, '"input" ')
    found = read_pair(row, start, chosen, rejected, "input", *SIDES, tools=read_tools(asked))
    return found.model_copy(update={"info": {**found.info, **given(parallel_tool_calls=parallel)}})


def _write(said: list[Spoken], *, weights: bool = False) -> list[Row]:
    """The messages of a conversation. OpenAI wants an id for every call, also where a record has none."""
    rows, waiting = list[Row](), list[str]()
    for message, trained in said:
        calls = [
            ToolCall(name=call.name, arguments=call.arguments, id=call.id or f"call_{len(rows)}_{i}")
            for i, call in enumerate(message.tool_calls)
        ]
        waiting = [str(call.id) for call in calls] or waiting
        answered = message.tool_call_id or (waiting.pop(0) if message.role == "tool" and waiting else None)
        rows.append(
            {"role": message.role, "content": message.content}
            | given(tool_calls=[_write_call(call) for call in calls], tool_call_id=answered, name=message.name)
            | ({"weight": 0} if weights and message.role == "assistant" and not trained else {})
        )
    return rows


def _write_call(call: ToolCall) -> Row:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _objects(value: Any) -> list[Row]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


FORMAT = Format(
    name="openai",
    about="OpenAI fine-tuning: messages with JSON text in tool calls; preferences (preferred_output)",
    matches=matches,
    read=read,
    write=write,
)
