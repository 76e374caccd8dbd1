"""ShareGPT's rows, `conversations` of `from` and `value`, as AgentInstruct and LLaMA-Factory have them; and Alpaca's.

AgentInstruct marks replies with `loss`: false is context only, true or null is trained.
LLaMA-Factory adds `system`, `tools` (JSON text), calls as `function_call` (JSON text, one call
or a list) and their results as `observation`; beside `chosen` and `rejected` (one message each)
the conversation is the start of a pair. An observation that answers no call comes from an
environment whose agent acts in plain text, so it is a user message.

A written row has the conversation, the tools, and the columns of `base.py`; what is known about
single turns (actions, step rewards) is left out. A reply with both text and tool calls has no place.
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
    split_turns,
    spoken,
    typed,
    write_ending,
    write_id,
    write_task,
)
from bough.data.messages import parse, read_tool_call, read_tools
from bough.errors import RowError
from bough.types import Group, Message, Pair, Role, ToolCall, Trajectory

ROLES: dict[str, Role] = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
}
NAMES: dict[Role, str] = {"system": "system", "user": "human", "assistant": "gpt", "tool": "observation"}


@reader
def read(row: Row) -> Trajectory | Pair:
    """A trajectory, or a pair if there are `chosen` and `rejected`."""
    said: list[Row] = field(row, "conversations", list)
    messages = _read_system(row)
    for i, message in enumerate(said):
        messages.append(_read_message(message, f"conversations[{i}]", messages))
    tools = [_wrapped(tool) for tool in read_tools(row)]
    own = "conversations", "system", "tools"
    if row.get("chosen") is not None or row.get("rejected") is not None:
        sides = [_read_message(field(row, side, dict), side, messages) for side in ("chosen", "rejected")]
        chosen, rejected = (split_turns([*messages, reply], begin=len(messages))[1] for reply in sides)
        return read_pair(row, messages, chosen, rejected, *own, "chosen", "rejected", tools=tools)
    replies = [(i, m) for i, m in enumerate(said) if ROLES[m["from"]] == "assistant"]
    trained = [optional(message, "loss", bool, f"conversations[{i}] ") is not False for i, message in replies]
    start, turns = split_turns(messages, trained=trained)
    return read_trajectory(row, start, turns, *own, tools=tools)


def write(record: Sample) -> Row:
    """The row of a trajectory, or of a pair of one reply each; a group of attempts has none."""
    if isinstance(record, Group):
        raise RowError("cannot_express", "sharegpt cannot express a group; write its attempts as separate rows")
    system = record.start[0].content if record.start[0].role == "system" else None
    start = [context(message) for message in record.start[1 if system is not None else 0 :]]
    if isinstance(record, Pair):
        if len(record.chosen) > 1 or len(record.rejected) > 1 or record.chosen[0].observation:
            raise RowError("cannot_express", "sharegpt has one reply for each side of a pair; this one has more")
        row: Row = {"conversations": [_write_message(message) for message, _ in start]}
        row |= {"chosen": _write_message(record.chosen[0].reply), "rejected": _write_message(record.rejected[0].reply)}
        known = given(reason=record.reason, margin=record.margin)
    else:
        said = [*start, *spoken(record.turns)]
        row = {"conversations": [_write_spoken(one) for one in said]}
        known = {**write_id(record), **write_ending(record)}
    tools = json.dumps(record.tools, ensure_ascii=False) if record.tools else None
    row |= {**given(system=system, tools=tools), **write_task(record.task), **known, **record.info}
    return same_conversation("sharegpt", record, row, read)


def _write_spoken(one: Spoken) -> Row:
    message, trained = one
    return _write_message(message) | ({"loss": False} if message.role == "assistant" and not trained else {})


def _write_message(message: Message) -> Row:
    if message.tool_calls:
        if message.content:
            raise RowError("cannot_express", "sharegpt cannot express a reply with both text and tool calls")
        calls = [_write_call(call) for call in message.tool_calls]
        value = json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False)
        return {"from": "function_call", "value": value}
    return {"from": NAMES[message.role], "value": message.content}


def _write_call(call: ToolCall) -> Row:
    return {"name": call.name, "arguments": call.arguments, **given(id=call.id)}


def _read_system(row: Row) -> list[Message]:
    text = optional(row, "system", str)
    return [Message(role="system", content=text)] if text else []


def _read_message(value: Any, what: str, before: list[Message]) -> Message:
    message: Row = typed(value, dict, what)
    where = f"{what} "
    speaker, text = field(message, "from", str, where), field(message, "value", str, where)
    role = ROLES.get(speaker)
    if role is None:
        raise RowError("wrong_type", f'{where}"from" is {speaker!r:.40}; it must be one of {", ".join(ROLES)}')
    if speaker == "function_call":
        calls = parse(text, f'{where}"value"')
        listed = calls if isinstance(calls, list) else [calls]
        return Message(role=role, tool_calls=[read_tool_call(call, f'{where}"value"') for call in listed])
    if speaker == "observation" and not (before and (before[-1].tool_calls or before[-1].role == "tool")):
        role = "user"
    return Message(role=role, content=text)


def _wrapped(tool: Row) -> Row:
    """A tool as chat templates expect it; LLaMA-Factory omits the outer layer."""
    return tool if "function" in tool else {"type": "function", "function": tool}


FORMAT = Format(
    name="sharegpt",
    about="conversations of from/value: ShareGPT, AgentInstruct (loss), LLaMA-Factory (function_call)",
    matches=lambda row: row.get("conversations") is not None,
    read=read,
    write=write,
)


# Alpaca's rows: `instruction`, an optional `input` and the `output`, as LLaMA-Factory extends them. `system` is the
# system message, `history` a list of earlier [instruction, response] rounds, which are context only. Instruction and
# input form one user message.

ALPACA_COLUMNS = ("instruction", "input", "output", "system", "history")


@reader
def read_alpaca(row: Row) -> Trajectory:
    """A trajectory of one trained reply, after the rounds of `history`."""
    instruction, given_input = field(row, "instruction", str), optional(row, "input", str)
    messages = _read_system(row)
    for i, said in enumerate(optional(row, "history", list) or []):
        messages += _round(said, f"history[{i}]")
    asked = f"{instruction}\n\n{given_input}" if given_input else instruction
    messages.append(Message(role="user", content=asked))
    reply = Message(role="assistant", content=field(row, "output", str))
    start, turns = split_turns([*messages, reply], begin=len(messages))
    return read_trajectory(row, start, turns, *ALPACA_COLUMNS)


def _round(value: Any, what: str) -> list[Message]:
    said = typed(value, list, what)
    if len(said) != 2:
        raise RowError("wrong_length", f"{what} has {len(said)} texts; a round has two, the instruction and the reply")
    asked, answered = (typed(text, str, f"{what}[{i}]") for i, text in enumerate(said))
    return [Message(role="user", content=asked), Message(role="assistant", content=answered)]


ALPACA = Format(
    name="alpaca",
    about="Alpaca: instruction, input and output, with LLaMA-Factory's system and history",
    matches=lambda row: row.get("instruction") is not None and row.get("output") is not None,
    read=read_alpaca,
)
