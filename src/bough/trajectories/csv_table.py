"""Rows of a CSV file whose first line names the columns.

Every cell is text; those of columns that formats expect as something else are read as JSON
(numbers, true and false, messages). An empty cell is a missing value.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any, BinaryIO

from pydantic_core import from_json

from bough.errors import RowError

DELIMITERS = ",;\t"
TRUTH = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
FLAGS = ("label", "success")
NUMBERS = ("reward", "margin", "reward_margin", "seed")
# Always JSON, and JSON where they look like a list of messages.
NESTED = ("messages", "conversations", "tools", "rewards", "steps", "trajectories", "task_data")
MAYBE_NESTED = ("prompt", "completion", "chosen", "rejected", "preferred_output", "non_preferred_output", "history")


def rows(file: BinaryIO, longest: int) -> Iterator[tuple[int, dict[str, Any] | RowError]]:
    """Each row as a dictionary with the number of its first line, or what is wrong with it."""
    # One limit for the whole process; the default of 128 KiB is too short for an episode.
    csv.field_size_limit(longest)
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        first = text.readline(longest)
        # A header of one name has no delimiter; a comma is as good as any.
        lines = csv.reader(_chained(first, text), delimiter=max(DELIMITERS, key=first.count), strict=True)
        yield from _parsed(lines)
    except UnicodeDecodeError as error:
        raise RowError("not_utf8", f"not UTF-8: byte {error.object[error.start]:#04x}") from None


def _parsed(lines: Any) -> Iterator[tuple[int, dict[str, Any] | RowError]]:
    names, begin = list[str](), 1
    try:
        for cells in lines:
            if not any(cells):
                pass
            elif not names:
                names = _names(cells)
            elif len(cells) != len(names):
                yield begin, RowError("wrong_length", f"the row has {len(cells)} cells and the header {len(names)}")
            else:
                yield begin, _row(names, cells)
            begin = lines.line_num + 1
    except csv.Error as error:
        raise RowError("damaged", f"not CSV after line {begin - 1}: {error}") from None


def _chained(first: str, rest: io.TextIOWrapper) -> Iterator[str]:
    yield first
    yield from rest


def _names(cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    if len(set(names)) < len(names) or "" in names:
        raise RowError("wrong_type", f"the first line must name each column once; it has {', '.join(names)!r:.200}")
    return names


def _row(names: list[str], cells: list[str]) -> dict[str, Any] | RowError:
    try:
        return {name: _value(name, cell) for name, cell in zip(names, cells, strict=True)}
    except ValueError as error:
        return RowError("wrong_type", str(error))


def _value(name: str, cell: str) -> Any:
    text = cell.strip()
    if not text:
        return None
    if name in FLAGS:
        if text.lower() not in TRUTH:
            raise ValueError(f'"{name}" is {text!r:.40}; it must be true or false')
        return TRUTH[text.lower()]
    if name in NUMBERS or name in NESTED:
        try:
            return from_json(text)
        except ValueError:
            raise ValueError(f'"{name}" is {text!r:.40}; it must be JSON') from None
    if name in MAYBE_NESTED and text.startswith("["):
        try:
            return from_json(text)
        except ValueError:
            return cell
    return cell
