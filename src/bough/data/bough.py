"""Bough's own format: one record per line, its kind and schema version first.

    {"bough": "trajectory/1", "id": "…", "task": {…}, "start": […], "turns": […], …}

The tag stands in every row rather than in a header, so shards can be concatenated,
split and sampled with any tool. Defaults are left out. A call's prompt repeats almost
all of the call before it; on disk it is therefore `shared` (how many tokens it begins
with that the previous call of the same record begins with, prompt and completion) and
the `prompt_ids` that are new. Read back, every prompt is whole again, token for token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from bough.data.base import Format, Row, Sample, common_prefix, row_error
from bough.errors import RowError
from bough.types import Call, Group, Pair, Trajectory

VERSION = 1
# Shared prefixes are stored once; restored, this many tokens take half a gigabyte.
MAX_TOKENS = 1 << 26
KINDS: dict[str, type[Sample]] = {"trajectory": Trajectory, "pair": Pair, "group": Group}
CALL_DEFAULTS = {name: field.default for name, field in Call.model_fields.items() if not field.is_required()}
# What is written without pydantic, in the form in which it leaves fields out: the calls, of which most is left out, and
# the data of tasks, of which it makes a slow copy.
IN_TURNS: dict[str, Any] = {"__all__": {"call": set(Call.model_fields)}}
IN_TASK = {"data"}
LEFT_OUT: dict[str, dict[str, Any]] = {
    "trajectory": {"task": IN_TASK, "turns": IN_TURNS},
    "pair": {"task": IN_TASK, "chosen": IN_TURNS, "rejected": IN_TURNS},
    "group": {"task": IN_TASK, "attempts": {"__all__": {"task": IN_TASK, "turns": IN_TURNS}}},
}


def read(row: Row) -> Sample:
    """The record of one row."""
    row = dict(row)
    tag = row.pop("bough", None)
    kind, _, version = str(tag).partition("/")
    if kind not in KINDS or not re.fullmatch("[1-9][0-9]{0,8}", version):
        allowed = ", ".join(f"{known}/{VERSION}" for known in KINDS)
        raise RowError("wrong_type", f'"bough" is {tag!r:.40}; it must be one of {allowed}')
    if int(version) > VERSION:
        raise RowError("newer_schema", f"{tag} was written by a newer Bough; this one reads up to {kind}/{VERSION}")
    try:
        shared = [stored.pop("shared", 0) for stored in _stored_calls(row)]
        record = KINDS[kind].model_validate(row)
    except ValidationError as error:
        raise row_error(error) from None
    except (AttributeError, TypeError):
        raise RowError("wrong_type", "turns and calls must be lists of objects") from None
    previous: list[int] = []
    total = 0
    for call, count in zip(_calls(record), shared, strict=True):
        if type(count) is not int or not 0 <= count <= len(previous):
            raise RowError("wrong_type", f'"shared" is {count!r}; the call before it has {len(previous)} tokens')
        total += count + len(call.prompt_ids)
        if total > MAX_TOKENS:
            raise RowError("too_large", f"the prompts have more than {MAX_TOKENS:,} tokens in total")
        call.prompt_ids[:0] = previous[:count]
        previous = call.prompt_ids + call.completion_ids
    return record


def write(record: Sample) -> Row:
    """The row of one record."""
    kind = next(name for name, model in KINDS.items() if isinstance(record, model))
    row: Row = {"bough": f"{kind}/{VERSION}", **record.model_dump(exclude_defaults=True, exclude=LEFT_OUT[kind])}
    attempts = record.attempts if isinstance(record, Group) else []
    for part, task in zip([row, *row.get("attempts", [])], [record.task, *(one.task for one in attempts)], strict=True):
        if task.data:
            part["task"]["data"] = task.data
    before, after = list[int](), list[int]()  # the prompt and the completion of the previous call
    for stored, call in zip(_stored_calls(row), _calls(record), strict=True):
        count = common_prefix(before, call.prompt_ids)
        if count == len(before):
            count += common_prefix(after, call.prompt_ids[count:])
        stored |= {name: value for name, value in call.__dict__.items() if value != CALL_DEFAULTS.get(name, ...)}
        stored["prompt_ids"] = call.prompt_ids[count:]
        if count:
            stored["shared"] = count
        before, after = call.prompt_ids, call.completion_ids
    return row


def prompt_tokens(row: Row) -> int:
    """Number of tokens of the prompts of a row once they are restored. Raises if the row is not a record."""
    return sum(int(stored.get("shared", 0)) + len(stored["prompt_ids"]) for stored in _stored_calls(row))


def _stored_calls(row: Row) -> Iterator[Row]:
    for part in row.get("attempts", [row]):
        for key in ("turns", "chosen", "rejected"):
            for turn in part.get(key, ()):
                if turn.get("call") is not None:
                    yield turn["call"]


def _calls(record: Sample) -> Iterator[Call]:
    for part in record.attempts if isinstance(record, Group) else [record]:
        turns = part.turns if isinstance(part, Trajectory) else [*part.chosen, *part.rejected]
        yield from (turn.call for turn in turns if turn.call is not None)


FORMAT = Format(
    name="bough",
    about="Bough's own format, with exact tokens",
    matches=lambda row: "bough" in row,
    read=read,
    write=write,
)
