"""Lossless writing: a row is written only if reading it gives the same record.

Every other format is smaller than ours. Rather than list what each has no place for,
a writer puts down what it can and lets its own reader judge. Two things may be lost,
and only these: the exact tokens of calls, and nulls among `info`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from bough.errors import RowError
from bough.formats.base import Read, Row, Sample

Kind = TypeVar("Kind", bound=Sample)
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
