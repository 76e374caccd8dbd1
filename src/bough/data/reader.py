"""Reads the records of any data file: streams it, detects the format, reports every bad row.

for trajectory in read("sft.jsonl"):              # the first bad row is an InputError
reader = Reader("sft.jsonl", on_error="skip")     # bad rows are skipped and counted
records = list(reader); reader.skipped            # Counter({"missing_field": 2})
"""

from __future__ import annotations

import contextlib
import itertools
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal

from pydantic import Field
from pydantic_core import from_json

from bough.config.base import Config, setting
from bough.data import bough, knowlyr, sharegpt, trl
from bough.data.base import Format, Row, Sample
from bough.data.lines import Content, files, lines
from bough.errors import InputError, RowError, did_you_mean
from bough.ledger import plural
from bough.types import Group, Pair, Turn

FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        bough.FORMAT,
        *knowlyr.FORMATS,
        sharegpt.ALPACA,
        trl.ROUNDWISE,
        sharegpt.FORMAT,
        trl.OPENAI,
        trl.KTO,
        trl.FORMAT,
    )
}


# What a row needs to be read, for a row that is none of them.
READABLE = (
    "no format has these. Rename the columns to one of: messages; prompt and completion; prompt, completion and label; "
    "prompt, chosen and rejected; instruction and output; conversations; input and preferred_output "
    f"(formats: {', '.join(FORMATS)})"
)
LONGEST = 200


def detect(row: Row) -> Format:
    """The format of a row."""
    for format in FORMATS.values():
        if format.matches(row):
            return format
    listed = ", ".join(map(repr, row)) or "none"
    shown = listed if len(listed) <= LONGEST else f"{listed[: LONGEST - 1]}…"
    raise RowError("unknown_format", f"the columns of the row are {shown}; {READABLE}")


def named(name: str) -> Format:
    """The format of that name."""
    if name not in FORMATS:
        raise InputError(f"{name!r} is not a format{did_you_mean(name, FORMATS)}")
    return FORMATS[name]


def writable() -> list[str]:
    """The names of the formats that can be written."""
    return [format.name for format in FORMATS.values() if format.write]


class SourceConfig(Config):
    """Input data."""

    file: Path = setting(
        positional=True,
        description="a .jsonl (plain, .zst, .gz, .xz), .json, .csv or .parquet file, a folder "
        "of such shards, a saved Hugging Face dataset, or one on the Hub as hf://org/name/split",
    )
    format: str = Field("auto", description="the file's format; `bough data formats` lists them")


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
    """The rows of a file or a folder of shards, a few at a time. Without a `format`, that of most first rows counts."""
    for path in files(source):
        contents, first, votes, seen = _contents(path), list[Numbered](), Counter[str](), 0
        for number, content in () if format else itertools.islice(contents, ROWS_TO_DETECT):
            row: Content
            try:
                row = parse(content)
                with contextlib.suppress(RowError):
                    votes[detect(row).name] += 1
            except RowError as error:
                row = error
            first.append((number, row))
            seen += _size(content)
            if seen > BYTES_TO_DETECT:
                break
        found = format or (FORMATS[votes.most_common(1)[0][0]] if votes else None)
        chunk, size = list[Numbered](), 0
        for number, content in itertools.chain(first, contents):
            chunk.append((number, content))
            size += _size(content)
            if len(chunk) == ROWS_AT_ONCE or size > BYTES_AT_ONCE:
                yield RawRows(str(path), found, chunk)
                chunk, size = [], 0
        if chunk:
            yield RawRows(str(path), found, chunk)


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
        try:
            content.decode()
        except UnicodeDecodeError as bad:
            byte = f"byte {bad.object[bad.start]:#04x} at column {bad.start + 1}"
            raise RowError("not_utf8", f"not UTF-8: {byte}") from None
        # The parser's line 1 is any line of the file: the column alone says where.
        said = str(error).replace(" at line 1 column ", " at column ")
        if content.endswith(b"\n"):
            raise RowError("not_json", f"not JSON: {said}") from None
        raise RowError("torn", f"the last line is cut off: {said}") from None
    if not isinstance(row, dict):
        raise RowError("not_json", "the line is JSON but not an object")
    return row


# Bad rows of a data file, with repeats of one problem grouped.

# The first places of a problem are enough to find it; the counts are always complete.
PLACES_SHOWN = 5
GROUPS_SHOWN = 50
# What differs between two messages about the same problem: values in quotes, and numbers.
_VALUE = re.compile(r"'[^']*'|0x[0-9a-f]+|\d+")


@dataclass(frozen=True)
class Problem:
    """One bad row."""

    file: str
    line: int
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


class Problems:
    """Collects bad rows in bounded memory. `reasons` counts all of them."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        # Of each group the first problem, the number of rows, and the places of the first few.
        self._groups: dict[tuple[str, str], tuple[Problem, int, list[str]]] = {}
        self._others = 0

    def add(self, problem: Problem) -> None:
        self.reasons[problem.reason] += 1
        key = (problem.reason, _VALUE.sub("…", problem.message))
        if key not in self._groups and len(self._groups) == GROUPS_SHOWN:
            self._others += 1
            return
        first, count, places = self._groups.get(key, (problem, 0, []))
        more = [f"{problem.file}:{problem.line}"] if count < PLACES_SHOWN else []
        self._groups[key] = first, count + 1, places + more

    def __bool__(self) -> bool:
        return bool(self.reasons)

    def lines(self) -> list[str]:
        """One line per group, in the order in which they were first seen."""
        found = []
        for first, count, places in self._groups.values():
            more = ", …" if count > len(places) else ""
            found.append(f"{first} ({count} rows, also {', '.join(places[1:])}{more})" if count > 1 else str(first))
        if self._others:
            found.append(f"and {plural(self._others, 'more row')} with other problems")
        return found

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"reason": first.reason, "message": first.message, "count": count, "first_places": places}
            for first, count, places in self._groups.values()
        ]


# Statistics of a data file: one pass, a few bytes of memory per record.


class Statistics:
    """Add records, then ask for `rows` ((name, value) lines to print) or `to_json`."""

    def __init__(self) -> None:
        self.counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.tasks: set[str] = set()
        self.numbers: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))

    def add(self, sample: Sample) -> None:
        self.counters["records"][type(sample).__name__.lower()] += 1
        self.tasks.add(sample.task.id)
        if isinstance(sample, Pair):
            self.counters["reasons"][sample.reason or "no reason given"] += 1
            if sample.margin is not None:
                self.numbers["margin"].append(sample.margin)
            self.numbers["messages before the pair splits"].append(len(sample.start))
            self._add_turns([*sample.chosen, *sample.rejected])
            return
        if isinstance(sample, Group):
            self.numbers["attempts per group"].append(len(sample.attempts))
        for trajectory in sample.attempts if isinstance(sample, Group) else [sample]:
            outcome = {True: "success", False: "failure", None: "unknown"}[trajectory.success]
            self.counters["outcomes"][outcome] += 1
            self.numbers["turns per trajectory"].append(len(trajectory.turns))
            for name, value in trajectory.rewards.items():
                if value is None:
                    self.counters["not scored"][name] += 1
                else:
                    self.numbers[f"reward: {name}"].append(value)
            self._add_turns(trajectory.turns)

    def _add_turns(self, turns: list[Turn]) -> None:
        count, tokens = self.counters["turns"], self.counters["tokens"]
        for turn in turns:
            count["trained" if turn.trained else "context only"] += 1
            count["corrected"] += turn.correction is not None
            count["with tool calls"] += bool(turn.reply.tool_calls)
            self.numbers["characters per reply"].append(len(turn.reply.content))
            if turn.reward is not None:
                self.numbers["reward per turn"].append(turn.reward)
            if turn.call is not None:
                count["with exact tokens"] += 1
                tokens["shown"] += len(turn.call.prompt_ids)
                tokens["answered"] += len(turn.call.completion_ids)

    def rows(self) -> Iterator[tuple[str, str]]:
        yield "tasks", f"{len(self.tasks):,}"
        for name, counts in self._counts().items():
            yield name, ", ".join(f"{count:,} {what}" for what, count in counts.items())
        for name, of in self._numbers().items():
            yield name, f"min {of['min']:g}, median {of['median']:g}, mean {of['mean']:.4g}, max {of['max']:g}"

    def to_json(self) -> dict[str, Any]:
        counts = {name.replace(" ", "_"): of for name, of in self._counts().items()}
        return {"tasks": len(self.tasks), **counts, "numbers": self._numbers()}

    def _counts(self) -> dict[str, dict[str, int]]:
        known = {name: {w: n for w, n in of.most_common() if n} for name, of in self.counters.items()}
        return {name: of for name, of in known.items() if of}

    def _numbers(self) -> dict[str, dict[str, float]]:
        return {
            name: {"min": min(values), "median": median(values), "mean": mean(values), "max": max(values)}
            for name, values in self.numbers.items()
        }
