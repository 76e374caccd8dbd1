"""Lossless writing: a row is written only if reading it gives the same record.

Every other format is smaller than ours. Rather than list what each has no place for,
a writer puts down what it can and lets its own reader judge. Two things may be lost,
and only these: the exact tokens of calls, and nulls among `info`. Formats that other programs
read strictly have the conversation alone; for them `same_conversation` is the judge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from bough.errors import RowError
from bough.formats.base import Read, Row, Sample
from bough.types import Group, Message, Pair, Turn

Kind = TypeVar("Kind", bound=Sample)
# A message, and whether it is trained (only replies are).
Spoken = tuple[Message, bool]
_CALLS = {"__all__": {"call"}}
_TURNS = {"turns": _CALLS, "chosen": _CALLS, "rejected": _CALLS}
_LOST: Any = {**_TURNS, "attempts": {"__all__": _TURNS}}


def expect(record: Sample, kind: type[Kind], name: str) -> Kind:
    """`record`, which must be of the kind that the format `name` can express."""
    if not isinstance(record, kind):
        raise RowError("cannot_express", f"{name} cannot express a {type(record).__name__.lower()}")
    return record


def faithful(name: str, record: Sample, row: Row, read: Callable[[Row], Read]) -> Row:
    """`row`, if `read` turns it back into `record`; otherwise RowError("cannot_express") says what would be lost."""
    try:
        again = read(row)
    except RowError as error:
        raise RowError("cannot_express", f"{name} cannot express this record: {error}") from None
    place = _difference(_comparable(record), _comparable(again))
    if place is not None:
        raise RowError("cannot_express", f"{name} cannot express {place} of this record")
    return row


def same_conversation(name: str, record: Sample, row: Row, read: Callable[[Row], Read]) -> Row:
    """`row`, if `read` finds the same messages, trained replies and tools in it. Ids of tool calls may differ."""
    try:
        again = read(row)
    except RowError as error:
        raise RowError("cannot_express", f"{name} cannot express this record: {error}") from None
    place = _difference(_conversation(record), _conversation(again))
    if place is not None:
        raise RowError("cannot_express", f"{name} cannot express {place} of this record")
    return row


def context(message: Message) -> Spoken:
    """A message that is not trained."""
    return message, False


def spoken(turns: list[Turn]) -> list[Spoken]:
    """The messages of turns."""
    return [said for turn in turns for said in ((turn.reply, turn.trained), *map(context, turn.observation))]


def _conversation(record: Sample) -> Row:
    assert not isinstance(record, Group)
    if isinstance(record, Pair):
        sides = {"chosen": spoken(record.chosen), "rejected": spoken(record.rejected)}
        return {"start": [_said(context(one)) for one in record.start], "tools": record.tools} | {
            side: [_said(one) for one in said] for side, said in sides.items()
        }
    said = [*map(context, record.start), *spoken(record.turns)]
    return {"messages": [_said(one) for one in said], "tools": record.tools}


def _said(one: Spoken) -> Row:
    message, trained = one
    ids: Any = {"tool_call_id": True, "tool_calls": {"__all__": {"id"}}}
    return message.model_dump(exclude=ids) | {"trained": trained}


def _comparable(record: Sample) -> Row:
    dump = record.model_dump(exclude=_LOST)
    for part in (dump, *dump.get("attempts", ())):
        part["info"] = {key: value for key, value in part["info"].items() if value is not None}
    return dump


def _difference(wanted: Any, got: Any, place: str = "") -> str | None:
    """The path of the first difference."""
    if wanted == got:
        return None
    parts: list[tuple[str, Any, Any]] = []
    if isinstance(wanted, dict) and isinstance(got, dict):
        parts = [(f"{place}.{key}".lstrip("."), wanted.get(key), got.get(key)) for key in {**wanted, **got}]
    elif isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        parts = [(f"{place}[{i}]", left, right) for i, (left, right) in enumerate(zip(wanted, got, strict=True))]
    return next((found for path, left, right in parts if (found := _difference(left, right, path))), place)
