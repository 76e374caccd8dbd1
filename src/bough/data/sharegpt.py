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
    context,
    faithful,
    field,
    given,
    not_group,
    optional,
    parse,
    read_pair,
    read_tool_call,
    read_tools,
    read_trajectory,
    reader,
    said,
    split_turns,
    spoken,
    typed,
    write_columns,
)
from bough.errors import RowError
from bough.types import Message, Pair, Role, Trajectory

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
    spoken_rows: list[Row] = field(row, "conversations", list)
    messages = _read_system(row)
    for i, message in enumerate(spoken_rows):
        messages.append(_read_message(message, f"conversations[{i}]", messages))
    # As chat templates expect them; LLaMA-Factory omits the outer layer.
    tools = [tool if "function" in tool else {"type": "function", "function": tool} for tool in read_tools(row)]
    own = "conversations", "system", "tools"
    if row.get("chosen") is not None or row.get("rejected") is not None:
        sides = [_read_message(field(row, side, dict), side, messages) for side in ("chosen", "rejected")]
        chosen, rejected = (split_turns([*messages, reply], begin=len(messages))[1] for reply in sides)
        return read_pair(row, messages, chosen, rejected, *own, "chosen", "rejected", tools=tools)
    replies = [(i, m) for i, m in enumerate(spoken_rows) if ROLES[m["from"]] == "assistant"]
    trained = [optional(message, "loss", bool, f"conversations[{i}] ") is not False for i, message in replies]
    start, turns = split_turns(messages, trained=trained)
    return read_trajectory(row, start, turns, *own, tools=tools)


def write(record: Sample) -> Row:
    """The row of a trajectory, or of a pair of one reply each; a group of attempts has none."""
    known = not_group(record, "sharegpt")
    system = known.start[0].content if known.start[0].role == "system" else None
    start = known.start[1:] if system is not None else known.start
    if isinstance(known, Pair):
        if len(known.chosen) > 1 or len(known.rejected) > 1 or known.chosen[0].observation:
            raise RowError("cannot_express", "sharegpt has one reply for each side of a pair; this one has more")
        row: Row = {"conversations": [_write_message(message) for message in start]}
        row |= {"chosen": _write_message(known.chosen[0].reply), "rejected": _write_message(known.rejected[0].reply)}
    else:
        all_messages = [*context(start), *spoken(known.turns)]
        row = {"conversations": [_write_message(message, trained) for message, trained in all_messages]}
    tools = json.dumps(known.tools, ensure_ascii=False) if known.tools else None
    row |= {**given(system=system, tools=tools), **write_columns(known)}
    return faithful("sharegpt", record, row, read, said)


def _write_message(message: Message, trained: bool = True) -> Row:
    loss = {"loss": False} if message.role == "assistant" and not trained else {}
    if not message.tool_calls:
        return {"from": NAMES[message.role], "value": message.content, **loss}
    if message.content:
        raise RowError("cannot_express", "sharegpt cannot express a reply with both text and tool calls")
    calls = [{"name": call.name, "arguments": call.arguments, **given(id=call.id)} for call in message.tool_calls]
    value = json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False)
    return {"from": "function_call", "value": value, **loss}


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
    for i, texts in enumerate(optional(row, "history", list) or []):
        if len(typed(texts, list, f"history[{i}]")) != 2:
            raise RowError("wrong_length", f"history[{i}] must have two texts, the instruction and the reply")
        asked, answered = (typed(text, str, f"history[{i}][{j}]") for j, text in enumerate(texts))
        messages += [Message(role="user", content=asked), Message(role="assistant", content=answered)]
    asked = f"{instruction}\n\n{given_input}" if given_input else instruction
    messages.append(Message(role="user", content=asked))
    reply = Message(role="assistant", content=field(row, "output", str))
    start, turns = split_turns([*messages, reply], begin=len(messages))
    return read_trajectory(row, start, turns, *ALPACA_COLUMNS)


ALPACA = Format(
    name="alpaca",
    about="Alpaca: instruction, input and output, with LLaMA-Factory's system and history",
    matches=lambda row: row.get("instruction") is not None and row.get("output") is not None,
    read=read_alpaca,
)
