"""Evolutions: the members of every generation, who descends from whom, and the winner's two measurements."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from bough.evolution.lineage import FILE_NAME
from bough.evolution.pedigree import Pedigree, read_pedigree
from bough.metrics import is_finite
from bough.viewer.credit import stage_settings
from bough.viewer.index import Index
from bough.viewer.records import MissingError
from bough.viewer.runs import read_json, state_of

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
