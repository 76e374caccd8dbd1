"""The result of a stage in a few numbers, for trackers, and the files with the details."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bough.disk import read_json
from bough.errors import InputError
from bough.evaluation.results import Results

REPORT_FILES = ("report.json", "results.json", "*ledger.json")


def numbers_of(folder: Path) -> dict[str, float]:
    """The success rate of an evaluation with its interval; for collections and curated data, the counts."""
    return dict(_evaluated(folder)) or dict(_reported(folder)) | dict(_kept(folder))


def files_of(folder: Path) -> list[Path]:
    return [file for pattern in REPORT_FILES for file in sorted(folder.glob(pattern))]


def _evaluated(folder: Path) -> Iterator[tuple[str, float]]:
    try:
        results = Results.read(folder)
    except InputError:
        return
    for number, model in enumerate(results.models):
        report: Any = results.reports.get(model.name) or {}
        success = report.get("success")
        if success is None or success["mean"] is None:
            continue
        end = f"_{number + 1}" if len(results.models) > 1 else ""
        yield f"success{end}", success["mean"]
        if success["interval"] is not None:
            yield f"success_low{end}", success["interval"]["low"]
            yield f"success_high{end}", success["interval"]["high"]
        yield f"episodes{end}", success["episodes"]
        if report.get("lost"):
            yield f"lost{end}", report["lost"]


def _reported(folder: Path) -> Iterator[tuple[str, float]]:
    report = _json(folder / "report.json")
    yield from ((key, value) for key, value in report.items() if isinstance(value, int | float))
    if lost := report.get("lost"):
        yield "lost", len(lost)


def _kept(folder: Path) -> Iterator[tuple[str, float]]:
    for file in sorted(folder.glob("*ledger.json")):
        ledgers = _json(file)
        for ledger in ledgers.get("ledgers", []):
            yield f"{ledger['item']}_in", ledger["in"]
            yield f"{ledger['item']}_kept", ledger["kept"]


def _json(file: Path) -> dict[str, Any]:
    try:
        found = read_json(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
