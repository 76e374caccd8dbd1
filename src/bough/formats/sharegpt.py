"""ShareGPT's rows: `conversations` of `from` and `value`, as AgentInstruct and LLaMA-Factory have them.

AgentInstruct marks replies with `loss`: false is context only, true or null is trained.
LLaMA-Factory adds `system`, `tools` (JSON text), calls as `function_call` (JSON text, one call
or a list) and their results as `observation`; beside `chosen` and `rejected` (one message each)
the conversation is the start of a pair. An observation that answers no call comes from an
environment whose agent acts in plain text, so it is a user message.
"""

from __future__ import annotations

from typing import Any

from bough.errors import RowError
from bough.formats.base import Format, Row, field, optional, reader, split_turns, typed
from bough.formats.columns import read_pair, read_trajectory
from bough.formats.messages import parse, read_tool_call, read_tools
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
)
