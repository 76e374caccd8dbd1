"""The result of a stage in a few numbers, for trackers, and the files with the details."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bough.disk import read_json
from bough.errors import InputError
from bough.evaluation.results import Results
from bough.metrics import is_finite

REPORT_FILES = ("report.json", "results.json", "*ledger.json")


def numbers_of(folder: Path) -> dict[str, float]:
    """The success rate of an evaluation with its interval; for collections and curated data, the counts."""
    found = dict(_evaluated(folder)) or dict(_reported(folder)) | dict(_kept(folder))
    return {name: value for name, value in found.items() if is_finite(value)}


def files_of(folder: Path) -> list[Path]:
    return [file for pattern in REPORT_FILES for file in sorted(folder.glob(pattern))]


def _evaluated(folder: Path) -> Iterator[tuple[str, Any]]:
    try:
        results = Results.read(folder)
    except InputError:
        return
    for number, model in enumerate(results.models):
        report = _mapping(results.reports.get(model.name))
        success = _mapping(report.get("success"))
        interval = _mapping(success.get("interval"))
        if success.get("mean") is None:
            continue
        end = f"_{number + 1}" if len(results.models) > 1 else ""
        yield f"success{end}", success["mean"]
        yield f"success_low{end}", interval.get("low")
        yield f"success_high{end}", interval.get("high")
        yield f"episodes{end}", success.get("episodes")
        yield f"lost{end}", report.get("lost") or None


def _reported(folder: Path) -> Iterator[tuple[str, Any]]:
    report = _json(folder / "report.json")
    yield from ((key, value) for key, value in report.items() if key != "lost")
    if lost := _mapping(report.get("lost")):
        yield "lost", len(lost)


def _kept(folder: Path) -> Iterator[tuple[str, Any]]:
    for file in sorted(folder.glob("*ledger.json")):
        ledgers = _json(file).get("ledgers")
        for ledger in map(_mapping, ledgers if isinstance(ledgers, list) else ()):
            yield f"{ledger.get('item')}_in", ledger.get("in")
            yield f"{ledger.get('item')}_kept", ledger.get("kept")


def _mapping(value: Any) -> dict[str, Any]:
    """A part of a file that may come from elsewhere, where anything can have been changed."""
    return value if isinstance(value, dict) else {}


def _json(file: Path) -> dict[str, Any]:
    try:
        found = read_json(file)
    except (OSError, ValueError):
        return {}
    return _mapping(found)
