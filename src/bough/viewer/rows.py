"""Rows of a data file with their places: read from an offset on, or fetched one at a time.

Plain JSON Lines can be read from any byte, so a file that grows is never read twice.
Rows of compressed files and tables have no offset and are found by their number.
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
# A longer line cannot be a record and is not held in memory.
MAX_LINE = 16 << 20
# Prompts that share their history on disk are expanded in memory.
MAX_TOKENS = 1 << 24
# After this many blank lines the reader yields, so that it can be stopped.
BLANKS = 10_000


@dataclass(frozen=True)
class Found:
    """One line: its number and bytes, and its record or what is wrong with it. `torn`: it may be complete next time.

    A record of None: there were only blank lines for a while, up to this one.
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
    """The record in a line, or why there is none. `light` drops the parts of a task that only its environment reads."""
    try:
        row = parse(content)
        if light and isinstance(task := row.get("task"), dict) and isinstance(data := task.get("data"), dict):
            # An environment's whole state may be in there; validating it takes longer than everything else.
            row["task"] = {**task, "data": {key: data[key] for key in TYPE_KEYS if key in data}}
        if "bough" in row and bough.prompt_tokens(row) > MAX_TOKENS:
            return RowError("too_large", f"the prompts have more than {MAX_TOKENS:,} tokens in all")
        return detect(row).read(row)
    except RowError as error:
        return error
    except (RecursionError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        # A row that breaks a reader is reported like any other bad row.
        return RowError("unreadable", f"{type(error).__name__}: {error}"[:300])


def _all(path: Path, after: int) -> Iterator[Found]:
    number = 0
    try:
        for number, content in lines(path, MAX_LINE):
            if number > after and (not isinstance(content, bytes) or content.strip()):
                yield Found(number, 0, 0, record_of(content, light=True))
            elif number > after and number % BLANKS == 0:
                yield Found(number, 0, 0, None)
    except RowError as error:
        yield Found(number + 1, 0, 0, error)
