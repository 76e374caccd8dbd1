"""File formats: one module each, a row in and a record out (and back, where it can be written).

`FORMATS` is in the order of detection, the most specific first. What a row is known by:

| format | columns |
|---|---|
| bough | `bough` |
| knowlyr-grpo | `trajectories` |
| knowlyr-sft | `instruction`, and `steps` or `response` |
| knowlyr-dpo | text `prompt`, `chosen` or `rejected`, and `reward_margin` or `task_id` |
| roundwise-dpo | `messages`, `chosen` or `rejected`, no `prompt` |
| sharegpt | `conversations` |
| openai | `messages` with a tool call whose arguments are JSON text |
| trl | any other `messages`, `prompt`/`completion`, `prompt`/`chosen`/`rejected`, `chosen`/`rejected` |

One of two sides is enough to be known as a preference: a row that lacks the other must
be told so, and never be trained on as something else.
"""

from __future__ import annotations

from bough.errors import InputError, RowError, did_you_mean
from bough.formats import bough, knowlyr, openai, roundwise, sharegpt, trl
from bough.formats.base import Format, Row

FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        bough.FORMAT,
        *knowlyr.FORMATS,
        roundwise.FORMAT,
        sharegpt.FORMAT,
        openai.FORMAT,
        trl.FORMAT,
    )
}


def detect(row: Row) -> Format:
    """The format of a row."""
    for format in FORMATS.values():
        if format.matches(row):
            return format
    columns = ", ".join(repr(key) for key in row) or "none"
    raise RowError("unknown_format", f"no format has these columns: {columns:.200}; known: {', '.join(FORMATS)}")


def named(name: str) -> Format:
    """The format of that name."""
    if name not in FORMATS:
        raise InputError(f"{name!r} is not a format{did_you_mean(name, FORMATS)}")
    return FORMATS[name]


def writable() -> list[str]:
    """The names of the formats that can be written."""
    return [format.name for format in FORMATS.values() if format.write]
