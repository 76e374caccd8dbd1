"""One file to share: the page, its scripts and all answers that it may ask for.

The file contacts no server: its own policy forbids it. Records beyond `max_records` of
each kind are left out and counted.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
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


def export(answers: FolderAnswers, path: Path, max_records: int) -> Written:
    """Writes the file."""
    answers.index.catch_up()
    page_data, written = _Data(answers), Written()
    page_data.ask("overview")
    for kind in KINDS:
        total, rows = _rows(answers, kind, max_records)
        written.records += len(rows)
        written.left_out += total - len(rows)
        page_data.rows += rows
        for row in rows:
            page_data.add_record(kind, row["at"])
    contents = answers.index.contents
    for name, folders in (
        ("training", contents.training), ("evaluation", contents.evaluations), ("evolution", contents.evolutions),
    ):  # fmt: skip
        for folder in folders:
            page_data.ask(name, folder=folder)
    if not page_data.rows and len(page_data.answers) == 1:
        raise InputError(f"{answers.index.root.path}: it contains nothing to export")
    text = page({name: getattr(page_data, name) for name in ("answers", "rows", "texts", "images")})
    try:
        write_atomically(path, text)
    except OSError as error:
        raise InputError(f"--export {path}: cannot be written: {error.strerror}") from None
    written.megabytes = len(text.encode()) / 1e6
    return written


class _Data:
    """The data inside the exported page."""

    def __init__(self, source: FolderAnswers) -> None:
        self.source = source
        self.answers: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []
        self.texts: dict[str, str] = {}  # what is searched
        self.images: dict[str, str] = {}
        self._num_tokens = 0

    def ask(self, name: str, **words: Any) -> dict[str, Any]:
        """The answer, which is kept; empty where there is none."""
        asked = {word: str(value) for word, value in words.items() if value is not None}
        try:
            self.answers[key(name, words)] = answer = self.source.known[name](asked)
        except MissingError:
            return {}
        return answer

    def add_record(self, kind: str, at: str) -> None:
        if kind == "group":
            for number in range(len(self.ask("tree", at=at).get("attempts", ()))):
                self._add_trajectory(at, number)
            return
        found = self.ask("record", at=at) if kind == "pair" else self._add_trajectory(at, None)
        places = ("start", "shared", "chosen", "rejected", "turns")
        said = [found[place] for place in places if place in found]
        self.texts[at] = json.dumps(said, ensure_ascii=False)[:40_000]
        if found.get("siblings"):
            self.ask("tree", at=at)

    def _add_trajectory(self, at: str, attempt: int | None) -> dict[str, Any]:
        found = self.ask("record", at=at, attempt=attempt)
        for number, turn in enumerate(found.get("turns", ())):
            if turn["call"] is not None and self._num_tokens < MAX_TOKENS:
                self._num_tokens += 1
                self.ask("tokens", at=at, attempt=attempt, turn=number)
        for one in found.get("images", ())[: MAX_IMAGES - len(self.images)]:
            words = {"at": at, "attempt": attempt, "number": one["number"]}
            try:
                content, kind = self.source.image({k: str(value) for k, value in words.items() if value is not None})
            except (MissingError, OSError):
                continue
            self.images[key("image", words)] = f"data:{kind};base64,{base64.b64encode(content).decode()}"
        return found


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


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
