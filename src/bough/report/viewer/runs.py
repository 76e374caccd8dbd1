"""The first page: the runs, their stages in order, what each was made of, and the success rates."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from bough import files
from bough.errors import BoughError, InputError
from bough.evaluation.comparison import compare
from bough.evaluation.results import FILE_NAME as RESULTS_FILE
from bough.evaluation.results import ModelResult, Results
from bough.evaluation.success import report
from bough.experiments.recipe import FILE_NAME, Planned, Recipe, plan, read_recipe, shared_settings
from bough.report.viewer.index import Index, counts
from bough.report.viewer.records import MissingError

MAX_JSON = 4 << 20
# A stage whose files were written this recently is still running.
FRESH_S = 60


def overview(index: Index) -> dict[str, Any]:
    """Everything the first page shows."""
    contents, here = index.contents, index.root.path
    by_folder: dict[str, list[dict[str, Any]]] = {}
    for row in counts(index):
        by_folder.setdefault(contents.stage_of(row["file"]), []).append(row)
    folders = sorted(
        {*contents.stages, *contents.training, *contents.evaluations, *contents.evolutions, *by_folder} - {""}
    )
    stages = {folder: _stage(index, folder, by_folder.get(folder, [])) for folder in folders}
    runs, problems = [], index.problems()
    # A recipe that was never run is a file like any other.
    for recipe in {str(Path(stage).parent): None for stage in contents.stages}:
        members = [stages.pop(name) for name in list(stages) if str(Path(name).parent) == recipe]
        found, planned, problem = _recipe(index, f"{recipe}/{FILE_NAME}")
        runs.append(_run(here, recipe, members, found))
        runs[-1]["stages"] += _pending(planned, {member["name"] for member in members})
        if problem:
            problems.append({"file": os.path.normpath(f"{recipe}/{FILE_NAME}"), "sentence": problem})
    if stages:
        runs.append({"name": index.root.name, "folder": None, "recipe": None, "stages": list(stages.values())})
    for run in runs:
        _lineage(run["stages"])
    return {
        "name": index.root.name,
        "runs": runs,
        "counts": {kind: sum(r["count"] for rows in by_folder.values() for r in rows if r["kind"] == kind)
                   for kind in ("trajectory", "pair", "group")},
        "training": contents.training,
        "evaluations": contents.evaluations,
        "evolutions": contents.evolutions,
        "problems": problems,
        "busy": index.busy,
    }  # fmt: skip


def read_json(index: Index, name: str) -> Any:
    """A small JSON file of the folder; None where there is none that can be read."""
    file = index.root.inside(index.root.path / name)
    try:
        return None if file is None else files.read_json(file, MAX_JSON)
    except (OSError, ValueError):
        return None


def state_of(index: Index, folder: str, record: Any) -> str:
    """Whether a stage is done, running or interrupted."""
    here = index.root.path / folder
    if isinstance(record, dict):
        done = bool(record.get("finished"))
    elif folder in index.contents.training or _is_there(here / "config.yaml"):
        done = any(_is_there(here / name) for name in ("report.json", "results.json", "final"))
    else:
        done = True
    if done:
        return "done"
    return "running" if _fresh(here) else "interrupted"


def _stage(index: Index, folder: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    record = read_json(index, f"{folder}/stage.json")
    known = record if isinstance(record, dict) else {}
    report = read_json(index, f"{folder}/report.json")
    return {
        "folder": folder,
        "name": Path(folder).name if folder != "." else index.root.name,
        "verb": _text(known.get("verb")) or _guess(index, folder, rows),
        "state": state_of(index, folder, record),
        "seconds": known.get("seconds") if isinstance(known.get("seconds"), int | float) else None,
        "note": _text(known.get("note")),
        "inputs": _texts(known.get("inputs")),
        "outputs": _texts(known.get("outputs")),
        "files": rows,
        "training": folder in index.contents.training,
        "evaluation": folder in index.contents.evaluations,
        "evolution": folder in index.contents.evolutions,
        "success": rates(index, folder) if folder in index.contents.evaluations else [],
        "report": _numbers(report),
        "lost": _lost(report),
    }


def _guess(index: Index, folder: str, rows: list[dict[str, Any]]) -> str:
    if folder in index.contents.evaluations:
        return "eval"
    if folder in index.contents.evolutions:
        return "evolve"
    if folder in index.contents.training:
        return "training"
    return "collect" if _is_there(index.root.path / folder / "config.yaml") else "data" if rows else ""


def _run(here: Path, folder: str, stages: list[dict[str, Any]], recipe: Recipe | None) -> dict[str, Any]:
    shown: dict[str, str] = {}
    if recipe is not None:
        shown = {key: str(getattr(recipe, key)) for key in ("name", "about", "model", "seed")}
        if environment := shared_settings(recipe).get("environment"):
            shown["environment"] = str(environment)
    return {"name": Path(here / folder).name, "folder": folder, "recipe": shown, "stages": stages}


def _recipe(index: Index, name: str) -> tuple[Recipe | None, list[Planned], str]:
    """The recipe, its planned stages, and what is wrong with the file."""
    path = index.root.path / name
    if not path.is_symlink() and not path.exists():
        return None, [], ""
    file = index.root.inside(path)
    if file is None:
        return None, [], "it is not a regular file inside the folder"
    try:
        found = file.stat()
    except OSError as error:
        return None, [], f"it cannot be read: {error.strerror}"
    return _read_recipe(file, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=64)
def _read_recipe(file: Path, mtime: int, size: int) -> tuple[Recipe | None, list[Planned], str]:  # noqa: ARG001  a file that changed is another
    try:
        recipe = read_recipe(file.parent)
    except (BoughError, TypeError) as error:
        return None, [], _sentence(error)
    try:
        return recipe, plan(recipe), ""
    except BoughError as error:
        return recipe, [], _sentence(error)


def _sentence(error: Exception) -> str:
    """An error on one line."""
    return " ".join(str(error).split())[:500]


def _pending(stages: list[Planned], begun: set[str]) -> list[dict[str, Any]]:
    """The stages of the recipe that have not started yet."""
    nothing: dict[str, Any] = {"inputs": {}, "outputs": {}, "files": [], "success": [], "report": {}, "note": ""}
    nothing |= {
        "seconds": None,
        "lost": 0,
        "training": False,
        "evaluation": False,
        "evolution": False,
        "state": "pending",
    }
    return [
        {"folder": stage.folder, "name": stage.folder, "verb": stage.verb, **nothing}
        for stage in stages
        if stage.folder not in begun
    ]


def _lineage(stages: list[dict[str, Any]]) -> None:
    """Finds the stage that made each input, by the digest of the content that both have on file."""
    made: dict[str, str] = {}
    for stage in stages:
        stage["made_of"] = [
            {"input": name, "stage": made.get(digest), "value": digest} for name, digest in stage["inputs"].items()
        ]
        made |= dict.fromkeys(stage["outputs"].values(), stage["folder"])


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # no permission
        return False


def _fresh(folder: Path) -> bool:
    """Whether something in the folder was written just now. A time to come says that the clock was put back."""
    now = time.time()
    try:
        return any(abs(now - entry.stat().st_mtime) < FRESH_S for entry in folder.iterdir())
    except OSError:
        return False


def _lost(report: Any) -> int:
    """How many episodes of a collection were lost to a broken environment or engine."""
    found = report.get("lost") if isinstance(report, dict) else None
    return len(found) if isinstance(found, dict) else 0  # reasons by episode


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> dict[str, str]:
    return {str(key): str(part) for key, part in value.items()} if isinstance(value, dict) else {}


def _numbers(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        return {}
    return {k: v for k, v in value.items() if isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e300}


# Evaluations: rates with their intervals, every pair of models compared, and the episodes that each number counts.

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
    file = index.root.inside(index.root.path / folder / RESULTS_FILE)
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
