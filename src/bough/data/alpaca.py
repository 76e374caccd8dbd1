"""Alpaca's rows: `instruction`, an optional `input` and the `output`, as LLaMA-Factory extends them.

`system` is the system message, `history` a list of earlier [instruction, response] rounds, which
are context only. Instruction and input form one user message.
"""

from __future__ import annotations

from typing import Any

from bough.data.base import Format, Row, field, optional, read_trajectory, reader, split_turns, typed
from bough.errors import RowError
from bough.types import Message, Trajectory

OWN = ("instruction", "input", "output", "system", "history")


@reader
def read(row: Row) -> Trajectory:
    """A trajectory of one trained reply, after the rounds of `history`."""
    instruction, given_input = field(row, "instruction", str), optional(row, "input", str)
    system = optional(row, "system", str)
    messages = [Message(role="system", content=system)] if system else []
    for i, said in enumerate(optional(row, "history", list) or []):
        messages += _round(said, f"history[{i}]")
    asked = f"{instruction}\n\n{given_input}" if given_input else instruction
    messages.append(Message(role="user", content=asked))
    reply = Message(role="assistant", content=field(row, "output", str))
    start, turns = split_turns([*messages, reply], begin=len(messages))
    return read_trajectory(row, start, turns, *OWN)


def _round(value: Any, what: str) -> list[Message]:
    said = typed(value, list, what)
    if len(said) != 2:
        raise RowError("wrong_length", f"{what} has {len(said)} texts; a round has two, the instruction and the reply")
    asked, answered = (typed(text, str, f"{what}[{i}]") for i, text in enumerate(said))
    return [Message(role="user", content=asked), Message(role="assistant", content=answered)]


FORMAT = Format(
    name="alpaca",
    about="Alpaca: instruction, input and output, with LLaMA-Factory's system and history",
    matches=lambda row: row.get("instruction") is not None and row.get("output") is not None,
    read=read,
)
