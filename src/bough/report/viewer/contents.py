"""What a folder contains that can be shown: data files, training runs, evaluations, evolutions, stages of recipes.

Only what is found here is ever served: a page asks for a name, and unknown names are
refused. Links that lead out of the folder are not followed.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bough.chat import tool_calls
from bough.data import bough
from bough.data.base import Sample
from bough.data.lines import PACKED_SUFFIXES, TEXT_SUFFIXES, Content, lines
from bough.data.reader import detect, parse
from bough.environments.rubric import score
from bough.errors import InputError, RowError
from bough.evaluation.results import TYPE_KEYS, task_type
from bough.files import open_file
from bough.types import Message, Pair, Trajectory, Turn

# Weights, pictures and unfinished work: these folders contain no records.
CLOSED = {"checkpoints", "cache", "final", "best", "images", "node_modules", "__pycache__"}
DATA_ENDINGS = tuple(text + packed for text in TEXT_SUFFIXES[:2] for packed in PACKED_SUFFIXES)
MAX_DEPTH = 7
MAX_FILES = 5000


@dataclass(frozen=True)
class Contents:
    """Paths relative to the root, by kind. `problems` says why other files are not shown."""

    data: list[str] = field(default_factory=list)
    training: list[str] = field(default_factory=list)
    evaluations: list[str] = field(default_factory=list)
    evolutions: list[str] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)

    def stage_of(self, file: str) -> str:
        """The folder of the stage that a data file belongs to: the nearest stage above it, else its own folder."""
        known = {*self.stages, *self.evaluations, *self.evolutions, *self.training}
        folders = [str(folder) for folder in Path(file).parents]
        return next((folder for folder in folders if folder in known), folders[0])


class Root:
    """The folder that is shown, or one file of it."""

    def __init__(self, path: Path) -> None:
        try:
            if not path.is_dir():
                open_file(path).close()
            self.only = None if path.is_dir() else path.name
            self.path = path.resolve() if path.is_dir() else path.parent.resolve()
            self.name = path.resolve().name
        except FileNotFoundError:
            raise InputError(f"{path}: there is no such file or folder") from None
        except (OSError, RuntimeError, ValueError) as error:  # no permission, a loop of links, a null byte
            raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None

    def contents(self) -> Contents:
        """What the folder contains now."""
        if self.only is not None:
            return Contents(data=[self.only])
        found, count = Contents(), 0
        places = {
            "metrics.jsonl": found.training,
            "results.json": found.evaluations,
            "stage.json": found.stages,
            "lineage.jsonl": found.evolutions,
        }

        def report(path: str, why: str) -> None:
            # The name as text, even if it is not UTF-8.
            found.problems[os.fsencode(os.path.relpath(path, self.path)).decode("utf-8", "replace")] = why

        def unreadable(error: OSError) -> None:
            report(error.filename, f"it cannot be read: {error.strerror}")

        for folder, folders, files in os.walk(self.path, onerror=unreadable):
            here = os.path.relpath(folder, self.path)
            depth = len(Path(here).parts)
            folders[:] = sorted(f for f in folders if f not in CLOSED and not f.startswith(".") and depth < MAX_DEPTH)
            for name in sorted(name for name in files if not name.startswith(".")):
                count += 1
                if count > MAX_FILES:
                    report(folder, f"there are more than {MAX_FILES} files; those from here on are not shown")
                    return found
                is_data = name.endswith((*DATA_ENDINGS, ".parquet"))
                if name not in places and not is_data:
                    continue
                file = Path(folder) / name
                if (problem := self._problem(file)) is not None:
                    report(str(file), problem)
                elif name in places:
                    places[name].append(here)
                else:
                    found.data.append(os.path.relpath(file, self.path))
        return found

    def inside(self, path: Path) -> Path | None:
        """The real path of a file in the folder, or None if it is outside or not a regular file."""
        try:
            real = path.resolve()
            return real if real.is_file() and real.is_relative_to(self.path) else None
        except (OSError, ValueError, RuntimeError):  # too long, a null byte, a loop of links
            return None

    def _problem(self, file: Path) -> str | None:
        """Why a file cannot be shown."""
        try:
            str(file).encode()
            mode = file.stat().st_mode
        except UnicodeEncodeError:
            return "its name is not UTF-8"
        except (OSError, RuntimeError) as error:
            return f"it cannot be read: {getattr(error, 'strerror', None) or error}"
        if not stat.S_ISREG(mode):
            return "it is not a regular file"
        return None if self.inside(file) is not None else "it is a link that leads out of the folder"


# Rows of a data file with their places: read from an offset on, or fetched one at a time.
# Plain JSON Lines can be read from any byte, so a file that grows is never read twice. Rows of compressed files and
# tables have no offset and are found by their number.

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
        number, after = 0, line
        try:
            for number, content in lines(path, MAX_LINE):
                if number > after and (not isinstance(content, bytes) or content.strip()):
                    yield Found(number, 0, 0, record_of(content, light=True))
                elif number > after and number % BLANKS == 0:
                    yield Found(number, 0, 0, None)
        except RowError as error:
            yield Found(number + 1, 0, 0, error)
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
                too_large = RowError("too_large", f"the line is longer than {MAX_LINE >> 20} MiB")
                yield Found(line, begin, offset - begin, too_large)
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


# The summary of a record: the values that lists show, filter, sort and search.

# Only this much of a record's text can be searched.
MAX_TEXT = 40_000
MAX_WORD = 300
OPENINGS = ("your task is to:", "task:", "goal:", "question:")


@dataclass(frozen=True)
class Summary:
    """What a list shows. `success` is None where it is unknown, and for pairs; `text` is for searching."""

    kind: str
    name: str
    task: str
    type: str | None
    environment: str | None
    success: bool | None
    reward: float | None
    turns: int
    tokens: int
    stop: str | None
    reason: str | None
    agent: str | None
    errors: int
    preview: str
    text: str


def summarise(record: Sample) -> Summary:
    """The summary of `record`."""
    agent: Any
    reason: Any
    if isinstance(record, Pair):
        name, start, turns = record.task.id, record.start, [*record.chosen, *record.rejected]
        success, reward, stop, reason, agent = None, record.margin, None, record.reason, None
    elif isinstance(record, Trajectory):
        name, start, turns = record.id, record.start, record.turns
        success, reward, stop = record.success, score(record), record.stop
        reason = record.info.get("reason") or record.info.get("rule")
        agent = record.info.get("agent")
    else:
        attempts = record.attempts
        name, start, turns = record.task.id, attempts[0].start, [turn for one in attempts for turn in one.turns]
        solved = [one.success for one in attempts]
        success = any(solved) if None not in solved or True in solved else None
        rewards = [value for one in attempts if (value := score(one)) is not None]
        reward = sum(rewards) / len(rewards) if rewards else None
        stop, reason = f"{solved.count(True)} of {len(solved)} succeed", None
        agents = dict.fromkeys(str(one.info["agent"]) for one in attempts if one.info.get("agent"))
        agent = ", ".join(agents) or None
    return Summary(
        kind=type(record).__name__.lower(),
        name=_cut(name),
        task=_cut(record.task.id),
        type=_word(task_type(record.task)),
        environment=_word(record.task.environment),
        success=success,
        reward=reward,
        turns=len(turns),
        tokens=sum(len(turn.call.completion_ids) for turn in turns if turn.call is not None),
        stop=_word(stop),
        reason=_word(reason),
        agent=_word(agent),
        errors=sum(turn.error is not None for turn in turns),
        preview=goal(start),
        text=_text(name, start, turns),
    )


def goal(start: list[Message]) -> str:
    """What the agent was asked, on one line: the line that names a task, else the last line of the first message."""
    said = [message.content for message in start if message.role != "system"] or [m.content for m in start]
    lines = [line.strip() for text in said[:1] for line in text.splitlines() if line.strip()]
    for line in lines:
        for opening in OPENINGS:
            if line.lower().startswith(opening) and len(line) > len(opening) + 1:
                asked = line[len(opening) :].strip()
                return _cut(asked[0].upper() + asked[1:])
    return _cut(lines[-1]) if lines else ""


def _text(name: str, start: list[Message], turns: list[Turn]) -> str:
    parts, size = [name], len(name)
    messages = [*start, *(m for turn in turns for m in (turn.reply, *turn.observation))]
    for message in messages:
        for said in (message.reasoning or "", message.content, *map(tool_calls.call_text, message.tool_calls)):
            parts.append(said[: MAX_TEXT - size])
            size += len(parts[-1])
        if size >= MAX_TEXT:
            break
    return "\n".join(parts)


def _word(value: Any) -> str | None:
    return None if value is None else _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_WORD else text[: MAX_WORD - 1] + "…"
