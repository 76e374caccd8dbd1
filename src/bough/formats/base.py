"""What a file format is, and the pieces that every reader of rows needs.

A format turns one row (a JSON object) into one record and, where it can be written,
back. A row that cannot be read raises `RowError` with one of the reasons below.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from bough.errors import RowError
from bough.types import Group, Message, Pair, Trajectory, Turn

Row = dict[str, Any]
Sample = Trajectory | Pair | Group

REASONS = {
    "not_json": "the line is not a JSON object",
    "not_utf8": "the line is not UTF-8 text",
    "torn": "the last line was cut off while it was written",
    "unknown_format": "no format has these columns",
    "newer_schema": "written by a newer Bough",
    "missing_field": "a column the format needs is absent or null",
    "wrong_type": "a value is of another type than the format says",
    "not_finite": "a number is NaN or infinite",
    "empty_completion": "a reply that should be trained is empty",
    "same_reply": "chosen equals rejected",
    "unbalanced_roles": "the roles do not alternate as a conversation does",
    "cannot_express": "the record holds something the target format has no place for",
}


@dataclass(frozen=True)
class Format:
    """One file format: how to know it, read it and (where `write` is given) write it."""

    name: str
    about: str
    matches: Callable[[Row], bool]
    read: Callable[[Row], Sample]
    write: Callable[[Sample], Row] | None = None


def field(row: Row, key: str, kind: type | tuple[type, ...], where: str = "") -> Any:
    """`row[key]`, which must be there, not null, and of `kind`."""
    value = row.get(key)
    if value is None:
        raise RowError("missing_field", f'{where}"{key}" is missing')
    return typed(value, kind, f'{where}"{key}"')


def typed(value: Any, kind: type | tuple[type, ...], what: str) -> Any:
    """`value`, which must be of `kind` (a bool is no number)."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join(JSON_NAMES[k] for k in kinds)
        raise RowError("wrong_type", f"{what} is {_json_name(value)}; it must be {names}")
    return value


def number(row: Row, key: str, where: str = "") -> float | None:
    """`row[key]` as a finite float, None where it is absent."""
    if row.get(key) is None:
        return None
    value = float(typed(row[key], (int, float), f'{where}"{key}"'))
    if not math.isfinite(value):
        raise RowError("not_finite", f'{where}"{key}" is {value}; it must be a finite number')
    return value


def rest(row: Row, *known: str) -> dict[str, Any]:
    """The columns a format gives no meaning to: kept in `info`, so nothing is lost."""
    return {key: value for key, value in row.items() if key not in known and value is not None}


def split_turns(messages: list[Message], *, trained: Iterable[bool] | None = None) -> tuple[list[Message], list[Turn]]:
    """A conversation as start and turns, its roles checked.

    The start is what stands before the first assistant message; every assistant
    message opens a turn and what follows it, up to the next one, is its observation.
    `trained` says for each assistant message whether it is trained (default: all are).
    """
    check_roles(messages)
    first = next((i for i, message in enumerate(messages) if message.role == "assistant"), None)
    if first is None:
        raise RowError("unbalanced_roles", "no assistant message: there is nothing to train")
    bounds = [i for i, message in enumerate(messages) if message.role == "assistant"]
    flags = list(trained) if trained is not None else [True] * len(bounds)
    turns = []
    for begin, end, flag in zip(bounds, [*bounds[1:], len(messages)], flags, strict=True):
        if flag and messages[begin].empty:
            raise RowError("empty_completion", f"message {begin} (assistant) is empty")
        turns.append(Turn(reply=messages[begin], observation=messages[begin + 1 : end], trained=flag))
    return messages[:first], turns


def check_roles(messages: list[Message]) -> None:
    """A system message only first, an assistant only after user or tool, a tool only after a tool call."""
    previous: Message | None = None
    for i, message in enumerate(messages):
        if message.role == "system" and previous is not None:
            raise RowError("unbalanced_roles", f"message {i} is a system message; only the first may be")
        if message.role == "assistant" and (previous is None or previous.role not in ("user", "tool")):
            before = previous.role if previous else "nothing"
            raise RowError("unbalanced_roles", f"message {i} is an assistant message after {before}; it must follow user or tool")
        if message.role == "tool" and not (previous and (previous.role == "tool" or previous.tool_calls)):
            raise RowError("unbalanced_roles", f"message {i} is a tool message that answers no tool call")
        previous = message


def digest(*messages: Message) -> str:
    """A short name for these messages: equal messages, equal name, on any machine."""
    hasher = hashlib.blake2b(digest_size=8)
    for message in messages:
        hasher.update(message.model_dump_json(exclude_defaults=True).encode() + b"\n")
    return hasher.hexdigest()


JSON_NAMES: dict[type, str] = {
    str: "a string", int: "a whole number", float: "a number", bool: "true or false", list: "a list", dict: "an object", type(None): "null",
}


def _json_name(value: Any) -> str:
    return JSON_NAMES.get(type(value), type(value).__name__)
