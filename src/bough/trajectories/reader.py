"""Reads the records of any data file: streams it, detects the format, reports every bad row.

for trajectory in read("sft.jsonl"):              # the first bad row is an InputError
reader = Reader("sft.jsonl", on_error="skip")     # bad rows are skipped and counted
records = list(reader); reader.skipped            # Counter({"missing_field": 2})
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic_core import from_json

from bough.errors import InputError, RowError
from bough.formats import FORMATS, detect, named
from bough.formats.base import Format, Row, Sample
from bough.trajectories.lines import Content, files, lines
from bough.trajectories.problems import Problem as Problem

OnError = Literal["skip", "stop"]
# Enough rows to outvote a few damaged ones at the top of a file.
ROWS_TO_DETECT = 100
# Fewer if they are large: they are kept in memory until the format is known.
BYTES_TO_DETECT = 16 << 20


@dataclass(frozen=True)
class Place:
    """The file and line of a record."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Reader:
    """Iterates over the records of a file or a folder of shards, in constant memory.

    During and after the iteration: `rows` counts the rows seen, `skipped` the bad ones by
    reason, `format` is the format of the current file, `place` the place of the last record.
    A last line cut off by a crash is counted as "torn" and never stops the reading.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        format: str = "auto",
        on_error: OnError = "stop",
        on_problem: Callable[[Problem], None] | None = None,
    ) -> None:
        self.source = source
        self.on_error = on_error
        self.on_problem = on_problem
        self.forced = None if format == "auto" else named(format)
        self.format: Format | None = self.forced
        self.rows = 0
        self.skipped: Counter[str] = Counter()
        self.place = Place(str(source), 0)

    def __iter__(self) -> Iterator[Sample]:
        for path in files(self.source):
            yield from self._read_file(path)

    def _read_file(self, path: Path) -> Iterator[Sample]:
        rows = _rows(path)
        first = [] if self.forced else _first(rows)
        self.format = self.forced or most_common_format([row for _, row, _ in first if not isinstance(row, RowError)])
        for number, row, _ in itertools.chain(first, rows):
            self.rows += 1
            self.place = Place(str(path), number)
            try:
                if isinstance(row, RowError):
                    raise row
                yield (self.format or detect(row)).read(row)
            except RowError as error:
                self._report(Problem(str(path), number, error.reason, str(error)))

    def _report(self, problem: Problem) -> None:
        self.skipped[problem.reason] += 1
        if self.on_problem:
            self.on_problem(problem)
        if self.on_error == "stop" and problem.reason != "torn":
            raise InputError(str(problem))


def read(source: str | Path, *, format: str = "auto", on_error: OnError = "stop") -> Iterator[Sample]:
    """The records of a file or a folder of shards."""
    return iter(Reader(source, format=format, on_error=on_error))


Numbered = tuple[int, Row | RowError, int]


def _first(rows: Iterator[Numbered]) -> list[Numbered]:
    first, size = [], 0
    for one in itertools.islice(rows, ROWS_TO_DETECT):
        first.append(one)
        size += one[2]
        if size > BYTES_TO_DETECT:
            break
    return first


def _rows(path: Path) -> Iterator[Numbered]:
    """The numbered rows of a file with their sizes; a row that cannot be parsed is given as its RowError."""
    number = 0
    try:
        for number, content in lines(path):
            if isinstance(content, bytes) and not content.strip():
                continue
            try:
                yield number, parse(content), len(content) if isinstance(content, bytes) else 0
            except RowError as error:
                yield number, error, 0
    except RowError as error:
        yield number + 1, error, 0


def parse(content: Content) -> Row:
    """One line's JSON object."""
    if isinstance(content, dict):
        return content
    if isinstance(content, RowError):
        raise content
    try:
        row = from_json(content)
    except ValueError as error:
        _check_utf8(content)
        reason = "not_json" if content.endswith(b"\n") else "torn"
        what = "not JSON" if reason == "not_json" else "the last line is cut off"
        raise RowError(reason, f"{what}: {_in_line(error)}") from None
    if not isinstance(row, dict):
        raise RowError("not_json", "the line is JSON but not an object")
    return row


def _in_line(error: ValueError) -> str:
    """What the parser says, with the column alone: its line 1 is any line of the file."""
    return str(error).replace(" at line 1 column ", " at column ").replace("expected ident", "expected a JSON value")


def _check_utf8(content: bytes) -> None:
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise RowError(
            "not_utf8", f"not UTF-8: byte {error.object[error.start]:#04x} at column {error.start + 1}"
        ) from None


def most_common_format(rows: list[Row]) -> Format | None:
    """The format of most of these rows; None if no row's format is known."""
    votes: Counter[str] = Counter()
    for row in rows:
        try:
            votes[detect(row).name] += 1
        except RowError:
            continue
    return FORMATS[votes.most_common(1)[0][0]] if votes else None
