"""One file to share: the page, its scripts and all answers that it may ask for.

The file contacts no server: its own policy forbids it. Records beyond `max_records` of
each kind are left out and counted.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic_core import to_json

from bough.errors import InputError
from bough.files import write_atomically
from bough.report.viewer.records import MissingError
from bough.report.viewer.server import FolderAnswers, assets, script

KINDS = ("trajectory", "pair", "group")
# Token ids of long prompts would be most of the file; only this many turns include them.
MAX_TOKENS = 400
MAX_IMAGES = 200
# What JavaScript's encodeURIComponent leaves as it is, besides letters, digits and "-_.~".
UNQUOTED = "!*'()"


@dataclass
class Written:
    """The size of the file, and how many records are in it."""

    megabytes: float = 0.0
    records: int = 0
    left_out: int = 0


@dataclass
class Parts:
    """The data inside the exported page."""

    answers: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)


def export(answers: FolderAnswers, path: Path, max_records: int) -> Written:
    """Writes the file."""
    answers.index.catch_up()
    parts, written = Parts(), Written()
    _ask(answers, parts, "overview")
    for kind in KINDS:
        total, rows = _rows(answers, kind, max_records)
        written.records += len(rows)
        written.left_out += total - len(rows)
        parts.rows += rows
        for row in rows:
            _record(answers, parts, kind, row)
    for folder in answers.index.contents.training:
        _ask(answers, parts, "training", folder=folder)
    for folder in answers.index.contents.evaluations:
        _ask(answers, parts, "evaluation", folder=folder)
    for folder in answers.index.contents.evolutions:
        _ask(answers, parts, "evolution", folder=folder)
    if not parts.rows and len(parts.answers) == 1:
        raise InputError(f"{answers.index.root.path}: it contains nothing to export")
    text = page(vars(parts))
    try:
        write_atomically(path, text)
    except OSError as error:
        raise InputError(f"--export {path}: cannot be written: {error.strerror}") from None
    written.megabytes = len(text.encode()) / 1e6
    return written


def page(data: dict[str, Any]) -> str:
    """The whole page around `data`."""
    style, code = assets()["style.css"].decode(), script()
    policy = (
        f"default-src 'none'; script-src '{_digest(code)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    # In a script element only "<" can end it; JSON may write it otherwise.
    carried = to_json(data, inf_nan_mode="null").decode("utf-8", "replace").replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<title>Bough</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n"
        f'<script type="application/json" id="bough-data">{carried}</script>\n'
        f'<script type="module">{code}</script>\n</body>\n</html>\n'
    )


def key(name: str, words: dict[str, Any]) -> str:
    """The key of an answer; `api.js` computes the same one."""
    kept = sorted((key, str(value)) for key, value in words.items() if value is not None)
    query = "&".join(f"{key}={quote(value, safe=UNQUOTED)}" for key, value in kept)
    return f"{name}?{query}" if query else name


def _rows(answers: FolderAnswers, kind: str, count: int) -> tuple[int, list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    while True:
        asked = {"kind": kind, "limit": str(min(500, count - len(rows))), "offset": str(len(rows))}
        found = answers.known["records"](asked)
        rows += found["rows"]
        if not found["rows"] or len(rows) >= min(count, found["total"]):
            return found["total"], rows


def _record(answers: FolderAnswers, parts: Parts, kind: str, row: dict[str, Any]) -> None:
    at = row["at"]
    if kind == "group":
        grown = _ask(answers, parts, "tree", at=at)
        for number in range(len(grown["attempts"]) if grown else 0):
            _trajectory(answers, parts, at, number)
        return
    if kind == "pair":
        found = _ask(answers, parts, "record", at=at)
        parts.texts[at] = _text(found, ("start", "shared", "chosen", "rejected"))
        return
    found = _trajectory(answers, parts, at, None)
    parts.texts[at] = _text(found, ("start", "turns"))
    if found and found.get("siblings"):
        _ask(answers, parts, "tree", at=at)


def _trajectory(answers: FolderAnswers, parts: Parts, at: str, attempt: int | None) -> dict[str, Any] | None:
    found = _ask(answers, parts, "record", at=at, attempt=attempt)
    if found is None:
        return None
    for number, turn in enumerate(found["turns"]):
        if turn["call"] is not None and sum(name.startswith("tokens") for name in parts.answers) < MAX_TOKENS:
            _ask(answers, parts, "tokens", at=at, attempt=attempt, turn=number)
    for one in found["images"]:
        words = {"at": at, "attempt": attempt, "number": one["number"]}
        if len(parts.images) < MAX_IMAGES:
            try:
                content, kind = answers.image({name: str(value) for name, value in words.items() if value is not None})
            except (MissingError, OSError):
                continue
            parts.images[key("image", words)] = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    return found


def _ask(answers: FolderAnswers, parts: Parts, name: str, **words: Any) -> dict[str, Any] | None:
    asked = {word: str(value) for word, value in words.items() if value is not None}
    try:
        parts.answers[key(name, words)] = answer = answers.known[name](asked)
    except MissingError:
        return None
    return answer


def _text(found: dict[str, Any] | None, places: tuple[str, ...]) -> str:
    """The text that is searched."""
    return json.dumps([found[place] for place in places], ensure_ascii=False)[:40_000] if found else ""


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
