"""An index of the records on file, in SQLite: built in the background, extended when a file grows.

Pages are answered from what has been indexed so far. The index is kept in the user's
cache folder, never in the folder that is shown, and can be deleted at any time.
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
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from bough.data.base import Sample
from bough.errors import InputError, RowError
from bough.files import cache_folder, text_digest
from bough.report.viewer.contents import Contents, Found, Root, Summary, is_plain, read_on, summarise

# Increase it when summaries change, so that old indexes are rebuilt.
VERSION = 6
COLUMNS = [name for name in Summary.__dataclass_fields__ if name != "text"]
SCHEMA = f"""
CREATE TABLE files (
    id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT UNIQUE, inode INTEGER, size INTEGER, mtime INTEGER,
    offset INTEGER, line INTEGER, bad TEXT);
CREATE TABLE records (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER, line INTEGER, offset INTEGER, length INTEGER,
    {", ".join(COLUMNS)});
CREATE UNIQUE INDEX places ON records (file, line);
CREATE INDEX kinds ON records (kind, file);
CREATE INDEX tasks ON records (file, task);
CREATE VIRTUAL TABLE words USING fts5(text, content='', detail=none, prefix='3 5');
"""
Facets = dict[str, list[dict[str, Any]]]
BATCH = 200
BATCH_S = 0.25
BATCH_BYTES = 16 << 20
SCAN_S = 2.0


@dataclass(frozen=True)
class State:
    """How far a file has been read."""

    id: int
    path: str
    inode: int
    size: int
    mtime: int
    offset: int
    line: int
    bad: str


@dataclass
class Reading:
    """A file that stays open between batches: the state `of` the file, its rows, the last line that was read."""

    of: tuple[int, ...]
    rows: Iterator[Found]
    line: int


class Index:
    """The index of one root. `contents` is what the last scan of the folder found."""

    def __init__(self, root: Root, file: Path | None = None) -> None:
        self.root = root
        self.contents: Contents = root.contents()
        self.file = file or _cache_file(root)
        self.busy = True
        self._visitors = 0
        self.facets: dict[tuple[str, str | None], tuple[Any, Facets]] = {}  # cached by queries
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._local = threading.local()
        self._reading: dict[str, Reading] = {}
        _prepare(self.file)

    def start(self) -> None:
        """Indexes in the background until `stop`."""
        self._thread = threading.Thread(target=self._run, name="index", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)

    def catch_up(self) -> None:
        """Scans the folder and indexes everything that is new."""
        self.contents = self.root.contents()
        self._forget(set(self.contents.data))
        left = list(self.contents.data)
        while left and not self._stop.is_set():
            # One batch per file in turn, so that a file that never ends does not hold up the others.
            left = [name for name in left if not self._stop.is_set() and self._advance(name)]
            time.sleep(0.001)  # lets requests be answered
        self.busy = False

    @contextlib.contextmanager
    def visited(self) -> Iterator[None]:
        """Pauses the indexing while a request is being answered."""
        self._visitors += 1
        try:
            yield
        finally:
            self._visitors -= 1

    @property
    def version(self) -> tuple[Any, ...]:
        """Changes whenever a record is added or removed."""
        last = "SELECT seq FROM sqlite_sequence WHERE name = 'records'"
        return tuple(self.query(f"SELECT ({last}), count(*), sum(offset) FROM files")[0])  # noqa: S608

    def query(self, sql: str, values: tuple[Any, ...] | list[Any] = ()) -> list[sqlite3.Row]:
        """Rows of a SELECT, on the calling thread's own connection."""
        return list(self._connection().execute(sql, values))

    def problems(self) -> list[dict[str, Any]]:
        """Files with rows that could not be read, and why."""
        rows = self.query("SELECT path, bad FROM files WHERE bad != '{}' ORDER BY path")
        said = [{"file": name, "sentence": why} for name, why in self.contents.problems.items()]
        return [*({"file": row["path"], "reasons": json.loads(row["bad"])} for row in rows), *said]

    def _run(self) -> None:
        while not self._stop.is_set():
            # A folder may vanish, a disk may fill up: what is in the index can still be shown.
            with contextlib.suppress(OSError, sqlite3.Error, InputError):
                self.catch_up()
            self._stop.wait(SCAN_S)

    def _advance(self, name: str) -> bool:
        """Reads one batch of a file; returns whether there may be more. Files that cannot be read become problems."""
        try:
            return self._read_batch(name)
        except sqlite3.Error:
            raise
        except FileNotFoundError:  # the next scan will not find it
            pass
        except Exception as error:  # a hostile file must not stop the indexing of the others
            why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"[:300]
            self.contents.problems[name] = f"it cannot be read: {why}"
        self._reading.pop(name, None)
        return False

    def _read_batch(self, name: str) -> bool:
        path = self.root.path / name
        stat = path.stat()
        state, now = self._state(name), (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if state is not None and (state.inode, state.size, state.mtime) == now:
            return False
        plain = is_plain(path)
        if plain:
            grown = state is not None and state.inode == stat.st_ino and stat.st_size >= state.offset
        else:
            grown = state is not None and name in self._reading and self._reading[name].of == now
        if state is None or not grown:
            self._reading.pop(name, None)
            offset = line = 0
            bad: Counter[str] = Counter()
        else:
            offset, line, bad = state.offset, state.line, Counter(json.loads(state.bad))
        rows = read_on(path, offset, line) if plain else self._rows_of(name, now, line)
        batch, whole = self._batch(rows, stat.st_size if plain else None)
        end = batch[-1] if batch else None
        if end is not None:
            offset, line = end.offset + end.length, end.line
        bad.update(found.record.reason for found in batch if isinstance(found.record, RowError))
        # Until the end is reached the file counts as changed, so that the next call continues.
        seen = (stat.st_size, stat.st_mtime_ns) if whole else (-1, -1)
        self._write(name, state, grown, (stat.st_ino, *seen, offset, line, json.dumps(bad)), batch)
        if plain or whole:
            self._reading.pop(name, None)
        else:
            self._reading[name].line = line
        return not whole

    def _rows_of(self, name: str, now: tuple[int, ...], line: int) -> Iterator[Found]:
        """The rows after `line` of a file without usable offsets: it stays open between batches."""
        known = self._reading.get(name)
        if known is None or known.line != line:  # or another viewer of the same folder has read more of it
            known = self._reading[name] = Reading(now, read_on(self.root.path / name, 0, line), line)
        return known.rows

    def _batch(self, rows: Iterator[Found], size: int | None) -> tuple[list[Found], bool]:
        """Some rows, and whether they are the last. A torn last line is left for the next batch."""
        batch: list[Found] = []
        read, end = 0, time.monotonic() + BATCH_S
        for found in rows:
            if found.torn:
                return batch, True
            batch.append(found)
            read += found.length or _weight(found.record)
            self._stand_aside()
            if len(batch) >= BATCH or read >= BATCH_BYTES or time.monotonic() > end:
                return batch, size is not None and found.offset + found.length >= size
        return batch, True

    def _stand_aside(self) -> None:
        end = time.monotonic() + 0.5
        while self._visitors and time.monotonic() < end:
            time.sleep(0.004)

    def _write(self, name: str, state: State | None, grown: bool, new: tuple[Any, ...], batch: list[Found]) -> None:
        db = self._connection()
        db.execute("BEGIN IMMEDIATE")
        try:
            if self._state(name) != state:  # another viewer of the same folder was faster
                db.execute("ROLLBACK")
                return
            if state is None or not grown:
                self._drop(name)
            db.execute(
                "INSERT INTO files (path, inode, size, mtime, offset, line, bad) VALUES (?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (path) DO UPDATE SET inode=excluded.inode, size=excluded.size, mtime=excluded.mtime, "
                "offset=excluded.offset, line=excluded.line, bad=excluded.bad",
                (name, *new),
            )
            [(number,)] = db.execute("SELECT id FROM files WHERE path = ?", (name,))
            for found in batch:
                if found.record is not None and not isinstance(found.record, RowError):
                    _insert(db, number, found, summarise(found.record))
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise

    def _state(self, name: str) -> State | None:
        rows = self.query("SELECT id, path, inode, size, mtime, offset, line, bad FROM files WHERE path = ?", (name,))
        return State(*rows[0]) if rows else None

    def _forget(self, names: set[str]) -> None:
        for row in self.query("SELECT path FROM files"):
            if row["path"] not in names:
                self._drop(row["path"])

    def _drop(self, name: str) -> None:
        # The words stay: nothing refers to them any more, and row ids are never reused.
        db = self._connection()
        db.execute("DELETE FROM records WHERE file IN (SELECT id FROM files WHERE path = ?)", (name,))
        db.execute("DELETE FROM files WHERE path = ?", (name,))

    def _connection(self) -> sqlite3.Connection:
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = self._local.db = _open(self.file)
        return db


def _weight(record: Sample | RowError | None) -> int:
    """About how many bytes a row of a packed file has."""
    return 0 if record is None or isinstance(record, RowError) else len(summarise(record).text)


def _insert(db: sqlite3.Connection, file: int, found: Found, summary: Summary) -> None:
    *values, text = astuple(summary)
    names = ", ".join(["file", "line", "offset", "length", *COLUMNS])
    marks = ", ".join("?" * (4 + len(COLUMNS)))
    cursor = db.execute(
        f"INSERT OR REPLACE INTO records ({names}) VALUES ({marks})",  # noqa: S608  our own column names
        (file, found.line, found.offset, found.length, *map(_plain, values)),
    )
    db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (cursor.lastrowid, _plain(text)))


def _plain(value: Any) -> Any:
    # JSON may hold half a surrogate pair, which SQLite cannot store.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _open(file: Path) -> sqlite3.Connection:
    db = sqlite3.connect(file, timeout=30, isolation_level=None, check_same_thread=False)
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=OFF")  # what is lost is read again
    return db


def _prepare(file: Path) -> None:
    """An index of this version; an old or damaged one is replaced."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(_open(file)) as db:
                [(version,)] = db.execute("PRAGMA user_version")
                if version == VERSION:
                    return
                if not list(db.execute("SELECT name FROM sqlite_master LIMIT 1")):
                    db.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
                    return
            for leftover in _files_of(file):
                leftover.unlink(missing_ok=True)
    except (OSError, sqlite3.Error) as error:
        raise InputError(
            f"{file}: the index cannot be written there ({error}); set BOUGH_CACHE to another folder"
        ) from None
    raise InputError(f"{file}: the index cannot be written there; set BOUGH_CACHE to another folder")


def _files_of(file: Path) -> Iterator[Path]:
    yield from (file, file.with_name(file.name + "-wal"), file.with_name(file.name + "-shm"))


def _cache_file(root: Root) -> Path:
    key = text_digest(f"{root.path}\0{root.only}", size=12)
    return cache_folder() / "viewer" / f"{key}.sqlite"


# Lists of records: filtered, searched, sorted, one page at a time, with counts for each filter.

SORTS = {
    "place": "files.path, records.line",
    "reward": "reward, records.id",
    "turns": "turns, records.id",
    "tokens": "tokens, records.id",
    "task": "task, records.id",
    "errors": "errors, records.id",
}
EXACT = ("type", "stop", "reason", "agent", "task", "environment")
BOUNDS = {
    "min_reward": "reward >= ?",
    "max_reward": "reward <= ?",
    "min_turns": "turns >= ?",
    "max_turns": "turns <= ?",
}
OUTCOMES = {"success": "success = 1", "failure": "success = 0", "unknown": "success IS NULL"}
SHOWN = (
    "kind, name, task, type, environment, success, reward, turns, tokens, stop, reason, agent, errors, preview, "
    "files.path AS file, records.line AS line"
)
FACETS = ("success", "type", "stop", "reason", "agent")
MAX_LIMIT = 500


def records(index: Index, asked: Mapping[str, str]) -> dict[str, Any]:
    """A page of the records that `asked` describes, their number, and the values there are to filter by."""
    kind = asked.get("kind", "trajectory")
    where, values = _where(index, kind, asked)
    tables = "records JOIN files ON files.id = records.file"
    order = SORTS.get(asked.get("sort", ""), SORTS["place"])
    if asked.get("order") == "down":
        order = ", ".join(f"{part} DESC" for part in order.split(", "))
    limit, offset = min(_number(asked, "limit", 100), MAX_LIMIT), _number(asked, "offset", 0)
    # Ids are sorted first, and only the rows of the page are then read.
    found = index.query(
        f"SELECT records.id, count(*) OVER () AS total FROM {tables} WHERE {where} "  # noqa: S608  nothing of the user's
        f"ORDER BY {order} LIMIT ? OFFSET ?",
        [*values, limit, offset],
    )
    if found or offset == 0:
        total = found[0]["total"] if found else 0
    else:  # past the end
        [(total,)] = index.query(f"SELECT count(*) FROM {tables} WHERE {where}", values)  # noqa: S608
    ids = [row["id"] for row in found]
    marks = ", ".join("?" * len(ids))
    sql = f"SELECT records.id, {SHOWN} FROM {tables} WHERE records.id IN ({marks})"  # noqa: S608
    by_id = {row["id"]: row for row in index.query(sql, ids)}
    rows = [by_id[number] for number in ids if number in by_id]
    return {
        "total": total,
        "offset": offset,
        "rows": [_row(row, index.contents) for row in rows],
        "facets": _facets(index, kind, asked.get("file")) | {"stage": _stages(index, kind)},
        "busy": index.busy,
    }


def counts(index: Index) -> list[dict[str, Any]]:
    """How many records of each kind every file holds."""
    rows = index.query(
        "SELECT files.path AS file, kind, count(*) AS count, "
        "sum(success = 1) AS successes, sum(success = 0) AS failures "
        "FROM records JOIN files ON files.id = records.file GROUP BY files.id, kind ORDER BY files.path, kind"
    )
    return [dict(row) for row in rows]


def lines_of_task(index: Index, file: str, task: str) -> list[int]:
    """The lines of a file with the attempts at a task."""
    rows = index.query(
        "SELECT records.line FROM records JOIN files ON files.id = records.file "
        "WHERE files.path = ? AND task = ? AND kind = 'trajectory' ORDER BY records.line LIMIT 200",
        (file, task),
    )
    return [row["line"] for row in rows]


def neighbours(index: Index, file: str, line: int, kind: str) -> dict[str, int | None]:
    """The lines of the records before and after one in its file."""
    sql = (
        "SELECT {}(records.line) AS line FROM records JOIN files ON files.id = records.file "
        "WHERE files.path = ? AND kind = ? AND records.line {} ?"
    )
    found = {name: index.query(sql.format(f, sign), (file, kind, line)) for name, f, sign in
             (("previous", "max", "<"), ("next", "min", ">"))}  # fmt: skip
    return {name: rows[0]["line"] for name, rows in found.items()}


def _where(index: Index, kind: str, asked: Mapping[str, str]) -> tuple[str, list[Any]]:
    where, values = ["kind = ?"], list[Any]([kind])
    if file := asked.get("file"):
        where.append("files.path = ?")
        values.append(file)
    if stage := asked.get("stage"):
        files = [name for name in index.contents.data if index.contents.stage_of(name) == stage]
        where.append("files.path IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(files))
    for name in EXACT:
        if asked.get(name):
            where.append(f"{name} = ?")
            values.append(asked[name])
    if asked.get("outcome") in OUTCOMES:
        where.append(OUTCOMES[asked["outcome"]])
    for name, condition in BOUNDS.items():
        if (bound := _float(asked.get(name))) is not None:
            where.append(condition)
            values.append(bound)
    if words := _words(asked.get("q", "")):
        where.append("records.id IN (SELECT rowid FROM words WHERE words MATCH ?)")
        values.append(words)
    return " AND ".join(where), values


def _words(text: str) -> str:
    """Every word must occur, the last one as a prefix; operators of the search engine have no effect."""
    words = re.findall(r"[^\W_]+", text)[:20]
    return " ".join(f'"{word}"' for word in words) + ("*" if words else "")


def _facets(index: Index, kind: str, file: str | None) -> Facets:
    """The values that the records of this kind have, most frequent first; counted again only when records change."""
    key = (kind, file)
    version = index.version
    kept = index.facets.get(key)
    if kept is not None and kept[0] == version:
        return kept[1]
    if len(index.facets) > 100:
        index.facets.clear()
    index.facets[key] = (version, _count_facets(index, kind, file))
    return index.facets[key][1]


def _count_facets(index: Index, kind: str, file: str | None) -> Facets:
    found = {}
    for name in FACETS:
        rows = index.query(
            f"SELECT {name} AS value, count(*) AS count FROM records JOIN files ON files.id = records.file "  # noqa: S608
            f"WHERE kind = ? AND (? IS NULL OR files.path = ?) AND {name} IS NOT NULL "
            "GROUP BY value ORDER BY count DESC, value LIMIT 50",
            (kind, file, file),
        )
        found[name] = [dict(row) for row in rows]
    rows = index.query(
        "SELECT files.path AS value, count(*) AS count FROM records JOIN files ON files.id = records.file "
        "WHERE kind = ? GROUP BY files.id ORDER BY files.path LIMIT 500",
        (kind,),
    )
    return found | {"file": [dict(row) for row in rows]}


def _stages(index: Index, kind: str) -> list[dict[str, Any]]:
    """How many records of a kind each stage has, in the order of the stages."""
    found: Counter[str] = Counter()
    for row in _facets(index, kind, None)["file"]:
        found[index.contents.stage_of(row["value"])] += row["count"]
    return [{"value": stage, "count": count} for stage, count in found.items()]


def _row(row: Any, contents: Contents) -> dict[str, Any]:
    shown = dict(row)
    del shown["id"]
    shown["success"] = None if shown["success"] is None else bool(shown["success"])
    return shown | {"at": f"{shown['file']}:{shown['line']}", "stage": contents.stage_of(shown["file"])}


def _number(asked: Mapping[str, str], name: str, default: int) -> int:
    value = asked.get(name, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else default


def _float(value: str | None) -> float | None:
    try:
        return float(value) if value else None
    except ValueError:
        return None
