"""The curves of a training run: the lines of `metrics.jsonl` that a page does not have yet."""

from __future__ import annotations

import json
import os
from typing import Any

from bough.disk import open_file
from bough.metrics import is_finite
from bough.viewer.credit import stage_settings
from bough.viewer.index import Index
from bough.viewer.records import MissingError
from bough.viewer.runs import read_json, state_of

# Read in pieces, so that a run of a million steps opens too.
MAX_PIECE = 8 << 20
MAX_METRICS = 400
# Of the end of the file, where the newest values are.
MAX_TAIL = 1 << 18
# Larger ones are not exact in a browser.
MAX_STEP = 2**53


def training(index: Index, folder: str, after: int) -> dict[str, Any]:
    """The metrics after byte `after`, where to continue, and whether there are more."""
    if folder not in index.contents.training:
        raise MissingError("there is no such training run in the folder")
    file = index.root.inside(index.root.path / folder / "metrics.jsonl")
    if file is None:
        raise MissingError("the run's metrics are gone")
    size = file.stat().st_size
    # A run that resumes drops lines: what the page has is then no longer what is on file.
    begin = after if 0 <= after <= size else 0
    with open_file(file) as stream:
        stream.seek(begin)
        piece = stream.read(MAX_PIECE)
    whole = piece[: piece.rfind(b"\n") + 1]
    answer: dict[str, Any] = {
        "folder": folder,
        "from": begin,
        "next": begin + len(whole),
        "more": begin + len(piece) < size,
        "state": state_of(index, folder, read_json(index, f"{folder}/stage.json")),
        "lines": [line for text in whole.splitlines() if (line := _line(text)) is not None],
    }
    if begin == 0:
        answer |= {"settings": _settings(index, folder), "report": read_json(index, f"{folder}/report.json")}
    return answer


def newest(index: Index, folder: str) -> tuple[dict[str, float], float]:
    """The newest value of every metric in the last lines of a run, and when the file was written in Unix time."""
    file = index.root.inside(index.root.path / folder / "metrics.jsonl")
    if file is None:
        raise MissingError("the run's metrics are gone")
    with open_file(file) as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - MAX_TAIL))
        tail = stream.read(MAX_TAIL)
    lines = tail[: tail.rfind(b"\n") + 1].splitlines()
    found: dict[str, float] = {}
    for text in lines:  # the first may be cut off: the end of an object alone is not JSON
        found |= _line(text) or {}
    return dict(list(found.items())[:MAX_METRICS]), file.stat().st_mtime


def _settings(index: Index, folder: str) -> dict[str, Any]:
    """A run's settings; paths inside the folder that is shown are relative to it."""
    here = f"{index.root.path}/"
    found = stage_settings(index, folder)
    return {key: value.removeprefix(here) if isinstance(value, str) else value for key, value in found.items()}


def _line(text: bytes) -> dict[str, float] | None:
    """The finite numbers of a line that has a step."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or not is_finite(values.get("step")) or abs(values["step"]) > MAX_STEP:
        return None
    numbers = {key: value for key, value in values.items() if is_finite(value)}
    return dict(list(numbers.items())[:MAX_METRICS])
