"""Lists of records: filtered, searched, sorted, one page at a time, with counts for each filter."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from bough.report.viewer.contents import Contents
from bough.report.viewer.index import Facets, Index

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
