"""An index of the records on file, in SQLite: built in the background, extended when a file grows.

Pages are answered from what has been indexed so far. The index is a temporary file, never
in the folder that is shown.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bough.errors import InputError, RowError
from bough.report.viewer.contents import Contents, Found, Root, Summary, is_plain, read_on, summarise

COLUMNS = [name for name in Summary.__dataclass_fields__ if name != "text"]
SCHEMA = f"""
CREATE TABLE records (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file TEXT, line INTEGER, offset INTEGER, length INTEGER,
    {", ".join(COLUMNS)});
CREATE UNIQUE INDEX places ON records (file, line);
CREATE INDEX kinds ON records (kind, file);
CREATE INDEX tasks ON records (file, task);
CREATE VIRTUAL TABLE words USING fts5(text, content='', detail=none, prefix='3 5');
"""
BATCH = 200
BATCH_S = 0.25
BATCH_BYTES = 16 << 20
SCAN_S = 2.0


@dataclass
class State:
    """How far a file has been read: its inode, size and time when it was, the next byte and line, bad rows."""

    seen: tuple[int, int, int] = (0, 0, 0)
    offset: int = 0
    line: int = 0
    bad: Counter[str] = field(default_factory=Counter)


class Index:
    """The index of one root. `contents` is what the last scan of the folder found."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.contents: Contents = root.contents()
        self.busy = True
        self.version = 0  # changes whenever a record is added or removed
        self._states: dict[str, State] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._folder = TemporaryDirectory(prefix="bough-view-", ignore_cleanup_errors=True)
        self.facets = lru_cache(maxsize=32)(partial(_facets, self))
        with self._errors_named():
            self._db = self._connect()  # for writing, by one thread at a time
            self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;" + SCHEMA)

    def start(self) -> None:
        """Indexes in the background until `close`."""
        self._thread = threading.Thread(target=self._run, name="index", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the indexing and removes the index."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)
        self._db.close()
        self._folder.cleanup()

    def catch_up(self) -> None:
        """Scans the folder and indexes everything that is new."""
        self.contents = self.root.contents()
        for name in self._states.keys() - set(self.contents.data):
            self._forget(name)
        left = [self._index(name) for name in self.contents.data]
        while left and not self._stop.is_set():
            # One batch per file in turn, so that a file that never ends does not hold up the others.
            with self._errors_named():
                left = [batches for batches in left if not self._stop.is_set() and next(batches, False)]
            time.sleep(0.001)  # lets requests be answered
        self.busy = False

    def query(self, sql: str, values: tuple[Any, ...] | list[Any] = ()) -> list[sqlite3.Row]:
        """Rows of a SELECT, from any thread."""
        with contextlib.closing(self._connect()) as db:
            return list(db.execute(sql, values))

    def problems(self) -> list[dict[str, Any]]:
        """Files with rows that could not be read, and why."""
        bad = [{"file": name, "reasons": dict(state.bad)} for name, state in sorted(self._states.items()) if state.bad]
        return [*bad, *({"file": name, "sentence": why} for name, why in self.contents.problems.items())]

    def _run(self) -> None:
        while not self._stop.is_set():
            # A folder may vanish, a disk may fill up: what is in the index can still be shown.
            with contextlib.suppress(OSError, sqlite3.Error, InputError):
                self.catch_up()
            self._stop.wait(SCAN_S)

    def _index(self, name: str) -> Iterator[bool]:
        """Reads a file, batch by batch. One that cannot be read becomes a problem."""
        try:
            for _ in self._batches(name):
                yield True
        except sqlite3.Error:
            raise
        except FileNotFoundError:  # the next scan will not find it
            return
        except Exception as error:  # a hostile file must not stop the indexing of the others
            why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"[:300]
            self.contents.problems[name] = f"it cannot be read: {why}"

    def _batches(self, name: str) -> Iterator[None]:
        path = self.root.path / name
        stat = path.stat()
        now, state = (stat.st_ino, stat.st_size, stat.st_mtime_ns), self._states.get(name, State())
        if state.seen == now:
            return
        # Only plain JSON Lines can be read on from an offset.
        if state.seen[0] != stat.st_ino or stat.st_size < state.offset or not is_plain(path):
            self._forget(name)
            state = State()
        self._states[name] = state
        batch: list[Found] = []
        size, end = 0, time.monotonic() + BATCH_S
        for found in read_on(path, state.offset, state.line):
            if found.torn:  # it may be complete next time
                break
            batch.append(found)
            size += found.length
            if len(batch) >= BATCH or size >= BATCH_BYTES or time.monotonic() > end:
                self._write(name, state, batch)
                yield
                batch, size, end = [], 0, time.monotonic() + BATCH_S
        self._write(name, state, batch)
        state.seen = now

    def _write(self, name: str, state: State, batch: list[Found]) -> None:
        db, bad = self._db, Counter[str]()
        columns = ", ".join(["file", "line", "offset", "length", *COLUMNS])
        marks = ", ".join("?" * (4 + len(COLUMNS)))
        with db:
            for found in batch:
                if isinstance(found.record, RowError):
                    bad[found.record.reason] += 1
                elif found.record is not None:
                    *values, text = map(_storable, astuple(summarise(found.record)))
                    cursor = db.execute(
                        f"INSERT INTO records ({columns}) VALUES ({marks})",  # noqa: S608  our own column names
                        (name, found.line, found.offset, found.length, *values),
                    )
                    db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (cursor.lastrowid, text))
        if batch:
            state.bad += bad
            state.offset, state.line = batch[-1].offset + batch[-1].length, batch[-1].line
            self.version += 1

    def _forget(self, name: str) -> None:
        # The words stay: nothing refers to them any more, and row ids are never reused.
        if self._states.pop(name, None) is not None:
            with self._db as db:
                db.execute("DELETE FROM records WHERE file = ?", (name,))
            self.version += 1

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(Path(self._folder.name) / "index.sqlite", timeout=30, check_same_thread=False)
        db.row_factory = sqlite3.Row
        return db

    @contextlib.contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            why = f"{self._folder.name}: the index of the viewer cannot be written: {error}"
            raise InputError(f"{why}; set TMPDIR to a folder with enough space") from None


def _storable(value: Any) -> Any:
    # JSON may hold half a surrogate pair, which SQLite cannot store.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


# Lists of records: filtered, searched, sorted, one page at a time, with counts for each filter.

SORTS = ("reward", "turns", "tokens", "task", "errors")
EXACT = ("file", "type", "stop", "reason", "agent", "task", "environment")
BOUNDS = {
    "min_reward": "reward >= ?",
    "max_reward": "reward <= ?",
    "min_turns": "turns >= ?",
    "max_turns": "turns <= ?",
}
OUTCOMES = {"success": "success = 1", "failure": "success = 0", "unknown": "success IS NULL"}
FACETS = ("success", "type", "stop", "reason", "agent")
MAX_LIMIT = 500


def records(index: Index, asked: Mapping[str, str]) -> dict[str, Any]:
    """A page of the records that `asked` describes, their number, and the values there are to filter by."""
    kind, contents = asked.get("kind", "trajectory"), index.contents
    where, values = _where(index, kind, asked)
    order = [asked["sort"], "id"] if asked.get("sort") in SORTS else ["file", "line"]
    down = " DESC" if asked.get("order") == "down" else ""
    limit, offset = min(whole(asked, "limit", 100), MAX_LIMIT), whole(asked, "offset", 0)
    [(total,)] = index.query(f"SELECT count(*) FROM records WHERE {where}", values)  # noqa: S608  nothing of the user's
    # Ids are sorted first, and only the rows of the page are then read.
    found = index.query(
        f"SELECT file, line, {', '.join(COLUMNS)} FROM records JOIN "  # noqa: S608
        f"(SELECT id AS wanted FROM records WHERE {where} ORDER BY {', '.join(f'{one}{down}' for one in order)} "
        f"LIMIT ? OFFSET ?) ON id = wanted ORDER BY {', '.join(f'{one}{down}' for one in order)}",
        [*values, limit, offset],
    )
    rows = [
        {
            **row,
            "success": None if row["success"] is None else bool(row["success"]),
            "at": f"{row['file']}:{row['line']}",
            "stage": contents.stage_of(row["file"]),
        }
        for row in map(dict, found)
    ]
    stages: Counter[str] = Counter()
    for one in index.facets(index.version, kind, None)["file"]:
        stages[contents.stage_of(one["value"])] += one["count"]
    facets = index.facets(index.version, kind, asked.get("file"))
    return {
        "total": total,
        "offset": offset,
        "rows": rows,
        "facets": facets | {"stage": [{"value": stage, "count": count} for stage, count in stages.items()]},
        "busy": index.busy,
    }


def counts(index: Index) -> list[dict[str, Any]]:
    """How many records of each kind every file holds."""
    rows = index.query(
        "SELECT file, kind, count(*) AS count, sum(success = 1) AS successes, sum(success = 0) AS failures "
        "FROM records GROUP BY file, kind ORDER BY file, kind"
    )
    return [dict(row) for row in rows]


def lines_of_task(index: Index, file: str, task: str) -> list[int]:
    """The lines of a file with the attempts at a task."""
    rows = index.query(
        "SELECT line FROM records WHERE file = ? AND task = ? AND kind = 'trajectory' ORDER BY line LIMIT 200",
        (file, task),
    )
    return [row["line"] for row in rows]


def neighbours(index: Index, file: str, line: int, kind: str) -> dict[str, int | None]:
    """The lines of the records before and after one in its file."""
    [row] = index.query(
        "SELECT max(line) FILTER (WHERE line < ?) AS previous, min(line) FILTER (WHERE line > ?) AS next "
        "FROM records WHERE file = ? AND kind = ?",
        (line, line, file, kind),
    )
    return dict(row)


def whole(asked: Mapping[str, str], name: str, otherwise: int) -> int:
    """A parameter that is a whole number from 0."""
    value = asked.get(name, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 16 else otherwise


def _where(index: Index, kind: str, asked: Mapping[str, str]) -> tuple[str, list[Any]]:
    where, values = ["kind = ?"], list[Any]([kind])
    if stage := asked.get("stage"):
        files = [name for name in index.contents.data if index.contents.stage_of(name) == stage]
        where.append("file IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(files))
    for name in EXACT:
        if asked.get(name):
            where.append(f"{name} = ?")
            values.append(asked[name])
    if asked.get("outcome") in OUTCOMES:
        where.append(OUTCOMES[asked["outcome"]])
    for name, condition in BOUNDS.items():
        with contextlib.suppress(ValueError):
            if asked.get(name):
                values.append(float(asked[name]))
                where.append(condition)
    # Every word must occur, the last one as a prefix; operators of the search engine have no effect.
    if words := re.findall(r"[^\W_]+", asked.get("q", ""))[:20]:
        where.append("id IN (SELECT rowid FROM words WHERE words MATCH ?)")
        values.append(" ".join(f'"{word}"' for word in words) + "*")
    return " AND ".join(where), values


def _facets(index: Index, version: int, kind: str, file: str | None) -> dict[str, list[dict[str, Any]]]:  # noqa: ARG001  counted again when records change
    """The values that the records of this kind have, most frequent first, and its files."""
    found = {}
    for name in FACETS:
        rows = index.query(
            f"SELECT {name} AS value, count(*) AS count FROM records "  # noqa: S608
            f"WHERE kind = ? AND (? IS NULL OR file = ?) AND {name} IS NOT NULL "
            "GROUP BY value ORDER BY count DESC, value LIMIT 50",
            (kind, file, file),
        )
        found[name] = [dict(row) for row in rows]
    files = "SELECT file AS value, count(*) AS count FROM records WHERE kind = ? GROUP BY file ORDER BY file LIMIT 500"
    return found | {"file": [dict(row) for row in index.query(files, (kind,))]}
