"""What a file format is, and the functions that every reader of rows needs.

A format turns one row (a JSON object) into one record and, where it can be written,
back. A row that cannot be read raises `RowError` with one of the reasons below.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, time
from typing import Any, TypeVar

from pydantic import ValidationError

from bough.digest import text_digest
from bough.errors import RowError
from bough.types import Group, Message, Pair, Trajectory, Turn, split_conversation

Row = dict[str, Any]
Sample = Trajectory | Pair | Group
Read = TypeVar("Read", bound=Sample)

REASONS = {
    "not_json": "the line is not a JSON object",
    "not_utf8": "the line is not UTF-8 text",
    "torn": "the last line was cut off while it was written",
    "damaged": "the file cannot be unpacked any further",
    "too_large": "the row is larger than any record",
    "unknown_format": "no format has these columns",
    "newer_schema": "written by a newer Bough",
    "missing_field": "a column the format needs is absent or null",
    "wrong_type": "a value is of another type than the format says",
    "wrong_length": "a list has another length than the format says",
    "not_finite": "a number is NaN or infinite",
    "empty_completion": "a reply that should be trained is empty",
    "same_reply": "chosen equals rejected",
    "unbalanced_roles": "the roles do not alternate as a conversation does",
    "cannot_express": "the record contains something that the target format cannot express",
}


@dataclass(frozen=True)
class Format:
    """One file format: how to recognise, read and (if `write` is given) write it."""

    name: str
    about: str
    matches: Callable[[Row], bool]
    read: Callable[[Row], Sample]
    write: Callable[[Sample], Row] | None = None


def reader(read: Callable[[Row], Read]) -> Callable[[Row], Read]:
    """`read`, with every error about a row turned into a RowError."""

    @functools.wraps(read)
    def guarded(row: Row) -> Read:
        try:
            return read(row)
        except ValidationError as error:
            raise row_error(error) from None
        except UnicodeEncodeError:
            raise RowError("not_utf8", "a text contains a lone surrogate (half a character)") from None
        except RecursionError:
            raise RowError("wrong_type", "the row is nested too deeply") from None

    return guarded


def field(row: Row, key: str, kind: type | tuple[type, ...], where: str = "") -> Any:
    """`row[key]`, which must be present, not null, and of `kind`."""
    value = optional(row, key, kind, where)
    if value is None:
        raise RowError("missing_field", f'{where}"{key}" is missing')
    return value


def optional(row: Row, key: str, kind: type | tuple[type, ...], where: str = "") -> Any:
    """`row[key]`, which must be of `kind`, or None if it is absent or null."""
    value = row.get(key)
    return None if value is None else typed(value, kind, f'{where}"{key}"')


def typed(value: Any, kind: type | tuple[type, ...], what: str) -> Any:
    """`value`, which must be of `kind` (a bool is not a number) and, if it is text, valid Unicode."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join(JSON_NAMES[k] for k in kinds if k is not int or float not in kinds)
        raise RowError("wrong_type", f"{what} is {_json_name(value)}; it must be {names}")
    return jsonable(value) if isinstance(value, str) else value


def number(row: Row, key: str, where: str = "") -> float | None:
    """`row[key]` as a finite float, None if it is absent."""
    return None if row.get(key) is None else finite(row[key], f'{where}"{key}"')


def finite(value: Any, what: str) -> float:
    """`value`, which must be a number, as a finite float."""
    try:
        converted = float(typed(value, (int, float), what))
    except OverflowError:
        converted = math.inf
    if not math.isfinite(converted):
        raise RowError("not_finite", f"{what} is {converted}; it must be a finite number")
    return converted


def rest(row: Row, *known: str) -> dict[str, Any]:
    """The columns a format gives no meaning to: kept in `info`, so nothing is lost."""
    columns = jsonable({key: value for key, value in row.items() if key not in known})
    return {key: value for key, value in columns.items() if value is not None}


def jsonable(value: Any) -> Any:
    """`value` as JSON can express it: NaN (a missing number in a table) as null, a date as text.

    Half a character (a lone surrogate, which JSON's escapes allow) raises UnicodeEncodeError.
    """
    if isinstance(value, dict):
        return {jsonable(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, str):
        value.encode()
    return value


def split_turns(
    messages: list[Message], *, begin: int | None = None, trained: Iterable[bool] | None = None
) -> tuple[list[Message], list[Turn]]:
    """A conversation as start and turns, its roles checked.

    The start is what stands before message `begin` (default: the first assistant
    message); from there on every assistant message opens a turn and what follows it, up
    to the next one, is its observation. `trained` says for each turn whether it is
    trained (default: all are).
    """
    check_roles(messages)
    if begin is None:
        begin = next((i for i, message in enumerate(messages) if message.role == "assistant"), len(messages))
    before, turns = split_conversation(messages[begin:])
    if not turns:
        raise RowError("unbalanced_roles", "no assistant message: there is nothing to train")
    if before:
        raise RowError("unbalanced_roles", f"message {begin} is a {before[0].role} message; it must be a reply")
    flags = [True] * len(turns) if trained is None else list(trained)
    replies = [i for i, message in enumerate(messages) if message.role == "assistant" and i >= begin]
    for i, turn, flag in zip(replies, turns, flags, strict=True):
        if flag and turn.reply.empty:
            raise RowError("empty_completion", f"message {i} (assistant) is empty")
    return messages[:begin], [t.model_copy(update={"trained": flag}) for t, flag in zip(turns, flags, strict=True)]


def check_roles(messages: list[Message]) -> None:
    """A system message only first, an assistant only after user or tool, a tool only after a tool call."""
    previous: Message | None = None
    for i, message in enumerate(messages):
        if message.role == "system" and previous is not None:
            raise RowError("unbalanced_roles", f"message {i} is a system message; only the first message may be one")
        if message.role == "assistant" and (previous is None or previous.role not in ("user", "tool")):
            before = previous.role if previous else "nothing"
            raise RowError(
                "unbalanced_roles", f"message {i} is an assistant message after {before}; it must follow user or tool"
            )
        if message.role == "tool" and not (previous and (previous.role == "tool" or previous.tool_calls)):
            raise RowError("unbalanced_roles", f"message {i} is a tool message that answers no tool call")
        previous = message


def digest(*messages: Message) -> str:
    """A short name for these messages; equal messages have equal names on any machine."""
    return text_digest("".join(f"{message.model_dump_json(exclude_defaults=True)}\n" for message in messages), size=8)


JSON_NAMES: dict[type, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def _json_name(value: Any) -> str:
    return JSON_NAMES.get(type(value), type(value).__name__)


def row_error(error: ValidationError) -> RowError:
    """The errors of pydantic in one sentence, with the reason of the first."""
    findings = error.errors(include_url=False, include_context=False, include_input=False)
    sentences = [f"{_place(finding['loc'])}{finding['msg'].removeprefix('Value error, ')}" for finding in findings[:3]]
    if len(findings) > 3:
        sentences.append(f"and {len(findings) - 3} more")
    first = findings[0]
    reason = {"missing": "missing_field", "finite_number": "not_finite"}.get(first["type"], "wrong_type")
    if '"rejected" equals "chosen"' in first["msg"]:
        reason = "same_reply"
    return RowError(reason, "; ".join(sentences))


def _place(location: tuple[int | str, ...]) -> str:
    if not location:
        return ""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    return f'"{path if len(path) <= 80 else path[:79] + "…"}": '
