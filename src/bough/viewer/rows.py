"""Rows of a data file, with where each stands: read on from an offset, or fetched again one at a time.

Plain JSON Lines are read from any byte on, so that a file that grows is never read
twice. Packed files and tables have no such place; of them a row is found by its number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bough.disk import open_file
from bough.errors import RowError
from bough.evaluation.outcomes import TYPE_KEYS
from bough.formats import bough, detect
from bough.formats.base import Sample
from bough.trajectories.lines import Content, lines
from bough.trajectories.reader import parse

PLAIN = (".jsonl", ".ndjson")
# A line longer than this is not a record but an accident, and is not held in memory.
MAX_LINE = 16 << 20
# Prompts that share their history are whole again in memory.
MAX_TOKENS = 1 << 24
# So many blank lines are passed over before the reader looks up.
BLANKS = 10_000


@dataclass(frozen=True)
class Found:
    """One line: its number and bytes, and its record or what is wrong with it. `torn`: it may be whole next time.

    A record of None: there were nothing but blank lines for long, up to this one.
    """

    line: int
    offset: int
    length: int
    record: Sample | RowError | None
    torn: bool = False


def is_plain(path: Path) -> bool:
    """Whether the file can be read on from an offset."""
    if path.suffix not in PLAIN:
        return False
    with open_file(path) as stream:
        return stream.read(64).lstrip()[:1] != b"["


def read_on(path: Path, offset: int, line: int) -> Iterator[Found]:
    """The rows after `offset`, the first of which has the number `line` + 1; blank lines are counted only."""
    if not is_plain(path):
        yield from _all(path, line)
        return
    with open_file(path) as stream:
        stream.seek(offset)
        while content := stream.readline(MAX_LINE):
            line, begin = line + 1, offset
            offset += len(content)
            if len(content) == MAX_LINE and not content.endswith(b"\n"):
                while (more := stream.readline(MAX_LINE)) and not more.endswith(b"\n"):
                    offset += len(more)
                offset += len(more)
                yield Found(line, begin, 0, RowError("too_large", f"the line is longer than {MAX_LINE >> 20} MiB"))
                continue
            if content.strip():
                record = record_of(content, light=True)
                torn = isinstance(record, RowError) and record.reason == "torn"
                yield Found(line, begin, len(content), record, torn)
            elif line % BLANKS == 0:
                yield Found(line, begin, len(content), None)


def fetch(path: Path, line: int, offset: int, length: int) -> Sample:
    """The record of one row. Raises RowError where it is not there any more or is none."""
    try:
        if length:
            with open_file(path) as stream:
                stream.seek(offset)
                found: Sample | RowError = record_of(stream.read(length))
        else:
            numbered = itertools.islice(lines(path, MAX_LINE), line - 1, line)
            found = next((record_of(content) for _, content in numbered), RowError("missing", "the row is gone"))
    except OSError as error:
        raise RowError("unreadable", f"the file cannot be read: {error.strerror}") from None
    if isinstance(found, RowError):
        raise found
    return found


def record_of(content: Content, *, light: bool = False) -> Sample | RowError:
    """The record in a line, or why there is none. `light` leaves out of a task what only its world can read."""
    try:
        row = parse(content)
        if light and isinstance(task := row.get("task"), dict) and isinstance(data := task.get("data"), dict):
            # A world's whole state may be in there; checking it takes longer than all the rest.
            row["task"] = {**task, "data": {key: data[key] for key in TYPE_KEYS if key in data}}
        if "bough" in row and bough.prompt_tokens(row) > MAX_TOKENS:
            return RowError("too_large", f"the prompts have more than {MAX_TOKENS:,} tokens in all")
        return detect(row).read(row)
    except RowError as error:
        return error
    except (RecursionError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        # A row made to break a reader is a bad row like any other.
        return RowError("unreadable", f"{type(error).__name__}: {error}"[:300])


def _all(path: Path, behind: int) -> Iterator[Found]:
    number = 0
    try:
        for number, content in lines(path, MAX_LINE):
            if number > behind and (not isinstance(content, bytes) or content.strip()):
                yield Found(number, 0, 0, record_of(content, light=True))
            elif number > behind and number % BLANKS == 0:
                yield Found(number, 0, 0, None)
    except RowError as error:
        yield Found(number + 1, 0, 0, error)
