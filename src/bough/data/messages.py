"""Chat messages as JSON: OpenAI's shape, which TRL and chat templates share.

A tool call's `arguments` may be an object (TRL) or the same as JSON text (OpenAI). Thinking
is `reasoning_content`, `thinking` or `reasoning`. An assistant message may also say what its
turn came to: `weight: 0` (not trained, as in OpenAI fine-tuning), `action`, `reward`,
`progress`, `error`. A `hint` is said only while the message is the newest. Other keys of a message are not read.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from bough.data.base import Row, field, given, jsonable, number, optional, split_turns, typed
from bough.errors import RowError
from bough.types import Message, Role, ToolCall, Turn

# "developer" is OpenAI's newer word for the system's voice.
ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
THINKING = ("reasoning_content", "thinking", "reasoning")
# A message and what it says about its turn.
AnnotatedMessage = tuple[Message, Row]


def read_messages(value: Any, what: str) -> list[AnnotatedMessage]:
    """A list of messages; their order is not checked."""
    return [
        (read_message(message, f"{what}[{i}]"), _read_note(message, f"{what}[{i}] "))
        for i, message in enumerate(typed(value, list, what))
    ]


def read_message(value: Any, what: str) -> Message:
    """One message."""
    message: Row = typed(value, dict, what)
    where = f"{what} "
    role = ROLES.get(field(message, "role", str, where))
    if role is None:
        raise RowError("wrong_type", f'{where}"role" is {message["role"]!r:.40}; it must be one of {", ".join(ROLES)}')
    if message.get("function_call") is not None:
        raise RowError("wrong_type", f'{where}"function_call" is not supported; write it as "tool_calls"')
    content = optional(message, "content", (str, list), where)
    if content is None and role != "assistant":
        raise RowError("missing_field", f'{where}"content" is missing')
    if isinstance(content, list):
        parts = [typed(part, dict, f"{where}content[{i}]") for i, part in enumerate(content)]
        for i, part in enumerate(parts):
            if field(part, "type", str, f"{where}content[{i}] ") != "text":
                kind = f"{part['type']!r:.40}; only text can be trained on"
                raise RowError("wrong_type", f"{where}content[{i}] is of type {kind}")
        content = "".join(field(part, "text", str, f"{where}content[{i}] ") for i, part in enumerate(parts))
    calls = optional(message, "tool_calls", list, where) or []
    return Message(
        role=role,
        content=content or "",
        hint=optional(message, "hint", str, where),
        reasoning=next((text for key in THINKING if (text := optional(message, key, str, where)) is not None), None),
        tool_calls=[read_tool_call(call, f"{where}tool_calls[{i}]") for i, call in enumerate(calls)],
        tool_call_id=optional(message, "tool_call_id", str, where),
        name=optional(message, "name", str, where),
    )


def read_tool_call(value: Any, what: str) -> ToolCall:
    """One tool call, its function wrapped (`{"function": {"name": …}}`) or bare (`{"name": …}`)."""
    call: Row = typed(value, dict, what)
    where = f"{what} "
    if (optional(call, "type", str, where) or "function") != "function":
        raise RowError("wrong_type", f'{where}"type" is {call["type"]!r:.40}; only functions can be called')
    function = optional(call, "function", dict, where) or call
    arguments = optional(function, "arguments", (dict, str), where)
    if isinstance(arguments, str):
        arguments = typed(parse(arguments or "{}", f'{where}"arguments"'), dict, f'{where}"arguments"')
    return ToolCall(
        name=field(function, "name", str, where),
        arguments=jsonable(arguments or {}),
        id=optional(call, "id", str, where),
    )


def read_tools(row: Row) -> list[Row]:
    """The schemas of the tools: a list, or the same as JSON text."""
    tools = optional(row, "tools", (list, str))
    if isinstance(tools, str):
        tools = typed(parse(tools or "[]", '"tools"'), list, '"tools"')
    return [jsonable(typed(tool, dict, f"tools[{i}]")) for i, tool in enumerate(tools or [])]


def read_turns(said: list[AnnotatedMessage], begin: int | None = None) -> tuple[list[Message], list[Turn]]:
    """Start and turns, with what the replies say about their turns."""
    messages = [message for message, _ in said]
    notes = [note for message, note in said[begin or 0 :] if message.role == "assistant"]
    start, turns = split_turns(messages, begin=begin, trained=[note.get("trained", True) for note in notes])
    return start, [turn.model_copy(update=note) for turn, note in zip(turns, notes, strict=True)]


def parse(text: str, what: str) -> Any:
    """The JSON value of a text inside a row."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise RowError("wrong_type", f"{what} is not JSON: {error}") from None


def write_message(message: Message) -> Row:
    """The JSON of one message as in TRL: arguments are an object."""
    calls = [
        given(id=call.id) | {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    more = given(
        hint=message.hint,
        reasoning_content=message.reasoning,
        tool_calls=calls,
        tool_call_id=message.tool_call_id,
        name=message.name,
    )
    return {"role": message.role, "content": message.content, **more}


def write_turns(turns: list[Turn]) -> list[Row]:
    """The messages of turns; the replies carry what is known about their turns."""
    messages = []
    for turn in turns:
        note = given(
            action=turn.action,
            reward=turn.reward,
            progress=turn.progress,
            error=turn.error,
            state=turn.state,
            weight=None if turn.trained else 0,
        )
        messages += [write_message(turn.reply) | note, *map(write_message, turn.observation)]
    return messages


def _read_note(message: Row, where: str) -> Row:
    """What an assistant message says about its turn, as fields of Turn."""
    if message["role"] != "assistant":
        return {}
    return {
        "action": optional(message, "action", str, where),
        "reward": number(message, "reward", where),
        "progress": number(message, "progress", where),
        "error": optional(message, "error", str, where),
        "state": optional(message, "state", str, where),
        "trained": number(message, "weight", where) != 0,
    }
