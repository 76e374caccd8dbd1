"""Evaluations: rates with their intervals, every pair of models compared, and the episodes that each number counts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from bough.errors import InputError
from bough.evaluation.comparison import compare
from bough.evaluation.results import FILE_NAME, ModelResult, Results
from bough.evaluation.success import report
from bough.viewer.index import Index
from bough.viewer.records import MissingError

# About 100,000 episodes.
MAX_RESULTS = 16 << 20
MAX_COMPARED = 12
MAX_TYPES = 1000


@dataclass(frozen=True)
class Evaluated:
    """The results on file and the report of each model."""

    results: Results
    reports: dict[str, Any]


def rates(index: Index, folder: str) -> list[dict[str, Any]]:
    """Every model's success with its interval, and how many episodes were lost."""
    try:
        found = _read(index, folder)
    except MissingError:
        return []
    return [{"model": name, **one["success"], "lost": one["lost"]} for name, one in found.reports.items()]


def evaluation(index: Index, folder: str) -> dict[str, Any]:
    """One evaluation, compared with those of the same run that played the same tasks."""
    if folder not in index.contents.evaluations:
        raise MissingError("there is no such evaluation in the folder")
    chosen = _read(index, folder).results
    board: list[tuple[str, Evaluated]] = []
    for other in index.contents.evaluations:
        if Path(other).parent == Path(folder).parent:
            try:
                found = _read(index, other)
            except MissingError:
                continue
            if _setting(found.results) == _setting(chosen):
                board.append((other, found))
    several = len(board) > 1
    models, named = [], list[ModelResult]()
    for where, found in board:
        for model in found.results.models:
            name = _name(where, model.name, several, len(found.results.models))
            named.append(model.model_copy(update={"name": name}))
            models.append({
                "name": name, "folder": where, "model": model.name, "file": _file(index, where, model.name),
                "settings": model.settings, "lost": [one.model_dump() for one in model.lost],
                "report": found.reports[model.name],
            })  # fmt: skip
    comparisons, why_not = _compared(named[:MAX_COMPARED], chosen)
    return {
        "folder": folder,
        "environment": chosen.environment,
        "split": chosen.split,
        "seed": chosen.seed,
        "attempts": chosen.attempts,
        "level": chosen.level,
        "options": chosen.options,
        "models": models,
        "comparisons": comparisons,
        "why_not": why_not,
    }


def _name(folder: str, model: str, several: bool, models: int) -> str:
    """The name of a row: the evaluation's if there are several, with the model's if that evaluation has several."""
    if not several:
        return model
    return Path(folder).name if models == 1 else f"{Path(folder).name} · {model}"


def _compared(models: list[ModelResult], results: Results) -> tuple[list[dict[str, Any]], str]:
    if len(models) < 2:
        return [], ""
    early = results.stop_width is not None
    why_not: list[str] = []
    found = compare(models, against="all", level=results.level, sequential=early, leave_out=why_not.append)
    return [one.to_json() for one in found], "; ".join(why_not)


def _setting(results: Results) -> tuple[Any, ...]:
    options = tuple(sorted((key, repr(value)) for key, value in results.options.items()))
    return (
        results.environment,
        options,
        results.split,
        results.seed,
        results.attempts,
        results.level,
        results.stop_width,
    )


def _file(index: Index, folder: str, model: str) -> str | None:
    """The file with a model's episodes."""
    from bough.evaluation.contest import folder_name

    name = str(Path(folder) / "models" / folder_name(model) / "trajectories.jsonl")
    return name if name in index.contents.data else None


def _read(index: Index, folder: str) -> Evaluated:
    file = index.root.inside(index.root.path / folder / FILE_NAME)
    if file is None or file.stat().st_size > MAX_RESULTS:
        raise MissingError("the evaluation's results are gone, or too large to read")
    return _cached(file, file.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _cached(file: Path, mtime: int) -> Evaluated:  # noqa: ARG001  a file that changed is another
    try:
        results = Results.read(file)
        if len({outcome.type for model in results.models for outcome in model.outcomes}) > MAX_TYPES:
            raise MissingError(f"the results name more than {MAX_TYPES} types of task")
        early = results.stop_width is not None
        # Computed from the outcomes again: the file may come from anywhere, so its own summary is not trusted.
        reports = {
            model.name: report(model.outcomes, lost=model.lost, level=results.level, sequential=early).to_json()
            for model in results.models
        }
    except (InputError, ArithmeticError) as error:  # numbers that no episode can have
        raise MissingError(str(error)) from None
    return Evaluated(results, reports)
