"""OpenAI's fine-tuning rows: `messages`, `tools`, tool calls whose arguments are JSON text.

Known by those arguments; a row without one is TRL's, which reads it the same.
"""

from __future__ import annotations

from typing import Any

from bough.formats.base import Format, Row, field, reader
from bough.formats.columns import read_trajectory
from bough.formats.messages import read_messages, read_tools, read_turns
from bough.types import Trajectory


@reader
def read(row: Row) -> Trajectory:
    """A whole conversation; every assistant message is a trained reply unless its `weight` is 0."""
    start, turns = read_turns(read_messages(field(row, "messages", list), "messages"))
    return read_trajectory(row, start, turns, "messages", "tools", tools=read_tools(row))


def matches(row: Row) -> bool:
    """`messages` in which a tool call's arguments are text."""
    calls = [call for message in _objects(row.get("messages")) for call in _objects(message.get("tool_calls"))]
    return any(
        isinstance(function.get("arguments"), str) for call in calls for function in _objects([call.get("function")])
    )


def _objects(value: Any) -> list[Row]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


FORMAT = Format(
    name="openai", about="OpenAI chat fine-tuning: messages, tool calls with JSON text", matches=matches, read=read
)
