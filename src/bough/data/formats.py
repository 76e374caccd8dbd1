"""File formats: a row in and a record out (and back, where it can be written).

`FORMATS` is in the order of detection, the most specific first. What a row is known by:

| format | columns |
|---|---|
| bough | `bough` |
| knowlyr-grpo | `trajectories` |
| knowlyr-sft | `instruction`, and `steps` or `response` |
| alpaca | `instruction`, `output` |
| knowlyr-dpo | text `prompt`, `chosen` or `rejected`, and `reward_margin` or `task_id` |
| roundwise-dpo | `messages`, `chosen` or `rejected`, no `prompt` |
| sharegpt | `conversations` |
| openai | `messages` with a tool call whose arguments are JSON text; `input` and `preferred_output` |
| kto | `prompt`, `completion`, `label` |
| trl | any other `messages`, `prompt`/`completion`, `prompt`/`chosen`/`rejected`, `chosen`/`rejected` |

One of two sides is enough to be known as a preference: a row that lacks the other must
be told so, and never be trained on as something else.
"""

from __future__ import annotations

from bough.data import bough, knowlyr, sharegpt, trl
from bough.data.base import Format, Row
from bough.errors import InputError, RowError, did_you_mean

FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        bough.FORMAT,
        *knowlyr.FORMATS,
        sharegpt.ALPACA,
        trl.ROUNDWISE,
        sharegpt.FORMAT,
        trl.OPENAI,
        trl.KTO,
        trl.FORMAT,
    )
}


# What a row needs to be read, for a row that is none of them.
READABLE = (
    "no format has these. Rename the columns to one of: messages; prompt and completion; prompt, completion and label; "
    "prompt, chosen and rejected; instruction and output; conversations; input and preferred_output "
    f"(formats: {', '.join(FORMATS)})"
)
LONGEST = 200


def detect(row: Row) -> Format:
    """The format of a row."""
    for format in FORMATS.values():
        if format.matches(row):
            return format
    listed = ", ".join(map(repr, row)) or "none"
    shown = listed if len(listed) <= LONGEST else f"{listed[: LONGEST - 1]}…"
    raise RowError("unknown_format", f"the columns of the row are {shown}; {READABLE}")


def named(name: str) -> Format:
    """The format of that name."""
    if name not in FORMATS:
        raise InputError(f"{name!r} is not a format{did_you_mean(name, FORMATS)}")
    return FORMATS[name]


def writable() -> list[str]:
    """The names of the formats that can be written."""
    return [format.name for format in FORMATS.values() if format.write]
