"""Result files put side by side: every model of every file, and what follows from comparing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bough.config.evaluation import CompareConfig
from bough.disk import write_json
from bough.errors import InputError
from bough.evaluation.comparison import compare
from bough.evaluation.gate import Decision, gate
from bough.evaluation.results import ModelResult, Results
from bough.evaluation.success import report


@dataclass(frozen=True)
class SideBySide:
    """Reports by model, comparisons, what to know about them, and the gate's decision where it was asked for."""

    reports: dict[str, Any]
    comparisons: list[dict[str, Any]]
    notes: list[str]
    decision: Decision | None
    level: float

    def to_json(self) -> dict[str, Any]:
        decided = self.decision.to_json() if self.decision is not None else None
        return {"reports": self.reports, "comparisons": self.comparisons, "gate": decided}

    def write(self, path: Path) -> None:
        write_json(path, self.to_json())


def side_by_side(files: Mapping[Path, Results], config: CompareConfig) -> SideBySide:
    """Compares the models of all files. Results of other tasks or fewer than two models are an InputError."""
    _check_comparable(files)
    models = _named_apart(files)
    if len(models) < 2:
        raise InputError(f"{next(iter(files))} contains one model; a comparison needs two: give a second file")
    early = any(results.stop_width is not None for results in files.values())
    found = compare(models, against=config.statistics.against, level=config.statistics.level, sequential=early)
    reports = {
        model.name: report(model.outcomes, lost=model.lost, level=config.statistics.level, sequential=early).to_json()
        for model in models
    }
    alpha = round(1.0 - config.statistics.level, 12)
    decision = None
    if config.gate:
        decision = gate(models[0], models[-1], alpha=alpha, sequential=early, by_type=config.gate_by_type)
    return SideBySide(reports, [one.to_json() for one in found], _notes(models), decision, config.statistics.level)


def _check_comparable(files: Mapping[Path, Results]) -> None:
    """Results from different environments, splits or seeds cannot be compared."""
    (first, reference), *others = files.items()
    problems = [
        f"{what} is {getattr(reference, what)!r} in {first} and {getattr(results, what)!r} in {path}"
        for path, results in others
        for what in ("environment", "options", "split", "seed")
        if getattr(results, what) != getattr(reference, what)
    ]
    if problems:
        raise InputError("these results cannot be compared:", problems)


def _named_apart(files: Mapping[Path, Results]) -> list[ModelResult]:
    """All models; a name that occurs in several files gets the file added."""
    names = [model.name for results in files.values() for model in results.models]
    return [
        model.model_copy(update={"name": f"{model.name} ({path})"}) if names.count(model.name) > 1 else model
        for path, results in files.items()
        for model in results.models
    ]


def _notes(models: list[ModelResult]) -> list[str]:
    """Settings that differ between the models: allowed, but the reader should know."""
    keys = sorted({key for model in models for key in model.settings} - {"adapter"})
    values = {key: [model.settings.get(key) for model in models] for key in keys}
    return [f"{key} differs: {some}" for key, some in values.items() if any(one != some[0] for one in some)]
