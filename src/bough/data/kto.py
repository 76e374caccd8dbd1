"""Unpaired preferences, as KTO learns from them: `prompt`, `completion` and a `label`, thumbs up or down.

A row becomes a trajectory whose `success` is the label. The reward `label` (1 or 0) marks it as a
judged reply: SFT must not imitate one with a 0.
"""

from __future__ import annotations

from bough.data.base import Format, Row, field, read_trajectory, reader
from bough.data.messages import read_tools, read_turns
from bough.data.trl import read_side
from bough.errors import RowError
from bough.types import Trajectory

LABEL = "label"


@reader
def read(row: Row) -> Trajectory:
    """A trajectory that starts with the whole prompt."""
    label = _read_label(row)
    prompt, completion = read_side(row, "prompt", "user"), read_side(row, "completion", "assistant")
    start, turns = read_turns(prompt + completion, begin=len(prompt))
    found = read_trajectory(row, start, turns, "prompt", "completion", "tools", LABEL, tools=read_tools(row))
    return found.model_copy(update={"success": label, "rewards": {**found.rewards, LABEL: float(label)}})


def _read_label(row: Row) -> bool:
    value = field(row, LABEL, (bool, int, float))
    if value not in (0, 1):
        raise RowError("wrong_type", '"label" is a number other than 0 and 1; it must be true or false')
    return bool(value)


FORMAT = Format(
    name="kto",
    about="KTO: prompt, completion and a label, true for a good reply and false for a bad one",
    matches=lambda row: all(row.get(column) is not None for column in ("prompt", "completion", LABEL)),
    read=read,
)
