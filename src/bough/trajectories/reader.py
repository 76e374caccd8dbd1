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
from typing import Any, Literal

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
# Rows that are handed on together.
ROWS_AT_ONCE = 32
BYTES_AT_ONCE = 1 << 20
Numbered = tuple[int, Content]


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
        for rows in raw_rows(self.source, self.forced):
            self.format = rows.format
            for number, found in rows.read():
                self.rows += 1
                self.place = Place(rows.file, number)
                if isinstance(found, RowError):
                    self._report(Problem(rows.file, number, found.reason, str(found)))
                else:
                    yield found

    def _report(self, problem: Problem) -> None:
        self.skipped[problem.reason] += 1
        if self.on_problem:
            self.on_problem(problem)
        if self.on_error == "stop" and problem.reason != "torn":
            raise InputError(str(problem))


def read(source: str | Path, *, format: str = "auto", on_error: OnError = "stop") -> Iterator[Sample]:
    """The records of a file or a folder of shards."""
    return iter(Reader(source, format=format, on_error=on_error))


@dataclass(frozen=True)
class RawRows:
    """Neighbouring rows of a file that are not read yet, so that another process can read them.

    `format` is the file's; None if it is not known, then each row is asked for its own.
    """

    file: str
    format: Format | None
    contents: list[Numbered]

    def read(self) -> Iterator[tuple[int, Sample | RowError]]:
        """Each row's number with its record, or with what is wrong with it."""
        for number, content in self.contents:
            try:
                row = parse(content)
                yield number, (self.format or detect(row)).read(row)
            except RowError as error:
                yield number, error

    def __reduce__(self) -> tuple[Any, ...]:
        """A format is its functions; another process finds it by its name."""
        return _raw_rows, (self.file, self.format.name if self.format else None, self.contents)


def _raw_rows(file: str, format: str | None, contents: list[Numbered]) -> RawRows:
    return RawRows(file, FORMATS[format] if format else None, contents)


def raw_rows(source: str | Path, format: Format | None = None) -> Iterator[RawRows]:
    """The rows of a file or a folder of shards, a few at a time. Without a `format` each file's is detected."""
    for path in files(source):
        contents = _contents(path)
        first = [] if format else _first(contents)
        found = format or most_common_format([row for _, row in first if isinstance(row, dict)])
        chunk, size = list[Numbered](), 0
        for number, content in itertools.chain(first, contents):
            chunk.append((number, content))
            size += _size(content)
            if len(chunk) == ROWS_AT_ONCE or size > BYTES_AT_ONCE:
                yield RawRows(str(path), found, chunk)
                chunk, size = [], 0
        if chunk:
            yield RawRows(str(path), found, chunk)


def _first(contents: Iterator[Numbered]) -> list[Numbered]:
    """The first rows, parsed."""
    first, size = list[Numbered](), 0
    for number, content in itertools.islice(contents, ROWS_TO_DETECT):
        try:
            first.append((number, parse(content)))
        except RowError as error:
            first.append((number, error))
        size += _size(content)
        if size > BYTES_TO_DETECT:
            break
    return first


def _contents(path: Path) -> Iterator[Numbered]:
    """The numbered contents of a file without its blank lines; a file that is damaged ends in a RowError."""
    number = 0
    try:
        for number, content in lines(path):
            if not isinstance(content, bytes) or content.strip():
                yield number, content
    except RowError as error:
        yield number + 1, error


def _size(content: Content) -> int:
    return len(content) if isinstance(content, bytes) else 0


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
