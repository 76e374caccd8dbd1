"""The curves of a training run: the lines of `metrics.jsonl` that a page does not have yet."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from bough.experiments.lineage import FILE_NAME, Pedigree, read_pedigree
from bough.files import open_file
from bough.ledger import is_finite
from bough.report.viewer.index import Index
from bough.report.viewer.records import MissingError, stage_settings
from bough.report.viewer.runs import read_json, state_of

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


# Evolutions: the members of every generation, who descends from whom, and the winner's two measurements.

# Metrics whose values are between 0 and 1.
RATES = ("accuracy", "success")
MAX_LINEAGE = 32 << 20


def evolution(index: Index, folder: str) -> dict[str, Any]:
    """All members as far as they are measured, and the winner if there is one yet."""
    if folder not in index.contents.evolutions:
        raise MissingError("there is no such evolution in the folder")
    found = _read(index, folder)
    report = read_json(index, f"{folder}/report.json")
    settings = stage_settings(index, folder)
    winner = _winner(report if isinstance(report, dict) else {}, found)
    metric = winner["metric"] if winner else _metric(settings)
    fittest = min(
        (one for one in found.members if one.generation == found.last), key=lambda one: one.place, default=None
    )
    leader = winner["name"] if winner else fittest.name if fittest else ""
    return {
        "folder": folder,
        "state": state_of(index, folder, read_json(index, f"{folder}/stage.json")),
        "metric": metric,
        "rate": metric in RATES,
        "generations": found.last + 1,
        "members": [member.model_dump() for member in found.members],
        "damaged": [{"line": one.line, "why": one.why} for one in found.damaged],
        "left_out": found.left_out,
        "winner": winner,
        "leader": leader,
        "pedigree": [{"generation": one.generation, "name": one.name} for one in found.ancestors(leader, found.last)],
    }


def _read(index: Index, folder: str) -> Pedigree:
    file = index.root.inside(index.root.path / folder / FILE_NAME)
    try:
        if file is None or (found := file.stat()).st_size > MAX_LINEAGE:
            raise MissingError("the evolution's lineage is gone, or too large to read")
        return _cached(file, found.st_mtime_ns, found.st_size)
    except OSError as error:
        raise MissingError(f"the evolution's lineage cannot be read: {error.strerror}") from None


@lru_cache(maxsize=4)
def _cached(file: Path, mtime: int, size: int) -> Pedigree:  # noqa: ARG001  a file that changed is another
    return read_pedigree(file)


def _winner(report: dict[str, Any], found: Pedigree) -> dict[str, Any] | None:
    """What the report says of the winner, if it is a member of the last generation: a resumed run has an old report."""
    about = report.get("winner")
    name = about.get("name") if isinstance(about, dict) else None
    if not any(member.name == name and member.generation == found.last for member in found.members):
        return None
    metric, shrinkage = report.get("metric"), report.get("shrinkage")
    return {
        "name": name,
        "metric": metric[:100] if isinstance(metric, str) else "fitness",
        "selected": _score(report.get("selected")),
        "untouched": _score(report.get("untouched")),
        "shrinkage": shrinkage if is_finite(shrinkage) else None,
        "updates": report["updates"] if is_finite(report.get("updates")) else None,
        "empty_updates": report["empty_updates"] if is_finite(report.get("empty_updates")) else 0,
        "tokens_computed": report["tokens_computed"] if is_finite(report.get("tokens_computed")) else None,
    }


def _score(value: Any) -> dict[str, Any]:
    found = value if isinstance(value, dict) else {}
    interval = found.get("interval")
    whole = isinstance(interval, list) and len(interval) == 2 and all(map(is_finite, interval))
    return {
        "fitness": found["fitness"] if is_finite(found.get("fitness")) else None,
        "interval": interval if whole else None,
        "tasks": found["tasks"] if is_finite(found.get("tasks")) else None,
    }


def _metric(settings: dict[str, Any]) -> str:
    """What fitness is, before there is a report."""
    fitness = settings.get("fitness")
    given = settings.get("metric") or (fitness.get("metric") if isinstance(fitness, dict) else None)
    if isinstance(given, str) and given != "auto":
        return given[:100]
    environment = settings.get("environment")
    named = environment.get("name") if isinstance(environment, dict) else environment
    if named:
        return "success"
    return "loss" if settings.get("method") == "sft" else "accuracy"
