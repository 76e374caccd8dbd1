"""Runs, their stages and what each was made of; evaluations, training runs and evolutions."""

from __future__ import annotations

import json
import os
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from bough import files
from bough.errors import BoughError, InputError
from bough.evaluation.comparison import compare
from bough.evaluation.contest import folder_name
from bough.evaluation.results import FILE_NAME as RESULTS_FILE
from bough.evaluation.results import ModelResult, Results
from bough.evaluation.success import reports
from bough.experiments.lineage import FILE_NAME as LINEAGE_FILE
from bough.experiments.lineage import Pedigree, read_pedigree
from bough.experiments.recipe import FILE_NAME, plan, read_recipe, read_settings, shared_settings
from bough.files import open_file
from bough.ledger import is_finite
from bough.report.viewer.index import Index, counts
from bough.report.viewer.records import MissingError

MAX_JSON = 4 << 20
# A stage whose files were written this recently is still running.
FRESH_S = 60


def overview(index: Index) -> dict[str, Any]:
    """Everything the first page shows."""
    contents = index.contents
    by_folder: dict[str, list[dict[str, Any]]] = {}
    for row in counts(index):
        by_folder.setdefault(contents.stage_of(row["file"]), []).append(row)
    folders = sorted(
        {*contents.stages, *contents.training, *contents.evaluations, *contents.evolutions, *by_folder} - {""}
    )
    stages = {folder: _stage(index, folder, by_folder.get(folder, [])) for folder in folders}
    runs, problems = list[dict[str, Any]](), index.problems()
    # A recipe that was never run is a file like any other.
    for folder in dict.fromkeys(str(Path(stage).parent) for stage in contents.stages):
        members = [stages.pop(name) for name in list(stages) if str(Path(name).parent) == folder]
        recipe, planned, problem = _recipe(index, f"{folder}/{FILE_NAME}")
        begun = {member["name"] for member in members}
        members += [
            _stage(index, None, []) | {"folder": name, "name": name, "verb": verb, "state": "pending"}
            for name, verb in planned.items()
            if name not in begun
        ]
        name = Path(index.root.path / folder).name
        runs.append({"name": name, "folder": folder, "recipe": recipe, "stages": members})
        if problem:
            problems.append({"file": os.path.normpath(f"{folder}/{FILE_NAME}"), "sentence": problem})
    if stages:
        runs.append({"name": index.root.name, "folder": None, "recipe": None, "stages": list(stages.values())})
    for run in runs:
        made: dict[str, str] = {}  # the stage that made each output, by the digest of its content
        for stage in run["stages"]:
            inputs = stage["inputs"].items()
            stage["made_of"] = [{"input": key, "stage": made.get(value), "value": value} for key, value in inputs]
            made |= dict.fromkeys(stage["outputs"].values(), stage["folder"])
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


def read_json(index: Index, name: str) -> dict[str, Any]:
    """A small JSON file of the folder; empty where there is none that can be read."""
    file = index.root.inside(index.root.path / name)
    try:
        found = None if file is None else files.read_json(file, MAX_JSON)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def stage_settings(index: Index, folder: str) -> dict[str, Any]:
    """The settings in a stage's `config.yaml`; empty if there are none that can be read."""
    file = index.root.inside(index.root.path / folder / "config.yaml")
    try:
        return {} if file is None else read_settings(file)[1]
    except InputError:
        return {}


def state_of(index: Index, folder: str) -> str:
    """Whether a stage is done, running or interrupted."""
    here, record = index.root.path / folder, read_json(index, f"{folder}/stage.json")
    if record:
        done = bool(record.get("finished"))
    elif folder in index.contents.training or _is_there(here / "config.yaml"):
        done = any(_is_there(here / name) for name in ("report.json", "results.json", "final"))
    else:
        done = True
    if done:
        return "done"
    try:  # a time to come says that the clock was put back
        fresh = any(abs(time.time() - entry.stat().st_mtime) < FRESH_S for entry in here.iterdir())
    except OSError:
        fresh = False
    return "running" if fresh else "interrupted"


def _stage(index: Index, folder: str | None, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A stage's files and records; without a folder, one that has not started."""
    contents = index.contents
    record = read_json(index, f"{folder}/stage.json") if folder else {}
    report = read_json(index, f"{folder}/report.json") if folder else {}
    kinds = {
        "evaluation": folder in contents.evaluations,
        "evolution": folder in contents.evolutions,
        "training": folder in contents.training,
    }
    guess = "data" if rows else ""
    if folder and _is_there(index.root.path / folder / "config.yaml"):
        guess = "collect"
    guess = next(({"evaluation": "eval", "evolution": "evolve"}.get(k, k) for k, has in kinds.items() if has), guess)
    lost = report.get("lost")  # reasons by episode
    return {
        "folder": folder,
        "name": Path(folder).name if folder and folder != "." else index.root.name,
        "verb": _text(record.get("verb")) or guess,
        "state": state_of(index, folder) if folder else "pending",
        "seconds": record.get("seconds") if is_finite(record.get("seconds")) else None,
        "note": _text(record.get("note")),
        "inputs": _texts(record.get("inputs")),
        "outputs": _texts(record.get("outputs")),
        "files": rows,
        **kinds,
        "success": rates(index, folder) if folder and kinds["evaluation"] else [],
        "report": {key: value for key, value in report.items() if is_finite(value)},
        "lost": len(lost) if isinstance(lost, dict) else 0,
    }


def _recipe(index: Index, name: str) -> tuple[dict[str, str] | None, dict[str, str], str]:
    """What a recipe says of itself, the verbs of its stages by folder, and what is wrong with the file."""
    path = index.root.path / name
    if not path.is_symlink() and not path.exists():
        return {}, {}, ""
    file = index.root.inside(path)
    if file is None:
        return {}, {}, "it is not a regular file inside the folder"
    try:
        return _read_recipe(file, file.stat().st_mtime_ns, file.stat().st_size)
    except OSError as error:
        return {}, {}, f"it cannot be read: {error.strerror}"


@lru_cache(maxsize=64)
def _read_recipe(file: Path, mtime: int, size: int) -> tuple[dict[str, str], dict[str, str], str]:  # noqa: ARG001  a file that changed is another
    shown: dict[str, str] = {}
    try:
        recipe = read_recipe(file.parent)
        shown = {key: str(getattr(recipe, key)) for key in ("name", "about", "model", "seed")}
        if environment := shared_settings(recipe).get("environment"):
            shown["environment"] = str(environment)
        return shown, {stage.folder: stage.verb for stage in plan(recipe)}, ""
    except (BoughError, TypeError) as error:
        return shown, {}, " ".join(str(error).split())[:500]


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # no permission
        return False


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> dict[str, str]:
    return {str(key): str(part) for key, part in value.items()} if isinstance(value, dict) else {}


# Evaluations: rates with their intervals, every pair of models compared, and the episodes that each number counts.

# About 100,000 episodes.
MAX_RESULTS = 16 << 20
MAX_COMPARED = 12
MAX_TYPES = 1000


def rates(index: Index, folder: str) -> list[dict[str, Any]]:
    """Every model's success with its interval, and how many episodes were lost."""
    try:
        _, found = _evaluated(index, folder)
    except MissingError:
        return []
    return [{"model": name, **one["success"], "lost": one["lost"]} for name, one in found.items()]


def evaluation(index: Index, folder: str) -> dict[str, Any]:
    """One evaluation, compared with those of the same run that played the same tasks."""
    if folder not in index.contents.evaluations:
        raise MissingError("there is no such evaluation in the folder")
    chosen, _ = _evaluated(index, folder)
    same = {"environment", "options", "split", "seed", "attempts", "level", "stop_width"}
    board: list[tuple[str, Results, dict[str, Any]]] = []
    for other in index.contents.evaluations:
        if Path(other).parent == Path(folder).parent:
            try:
                results, found = _evaluated(index, other)
            except MissingError:
                continue
            if results.model_dump(include=same) == chosen.model_dump(include=same):
                board.append((other, results, found))
    models, named = [], list[ModelResult]()
    for where, results, found in board:
        for model in results.models:
            # The evaluation's name if there are several, with the model's if that evaluation has several.
            own = [Path(where).name] if len(board) > 1 else []
            name = " · ".join([*own, model.name] if not own or len(results.models) > 1 else own)
            named.append(model.model_copy(update={"name": name}))
            file = str(Path(where) / "models" / folder_name(model.name) / "trajectories.jsonl")
            models.append({
                "name": name, "folder": where, "model": model.name,
                "file": file if file in index.contents.data else None,
                "settings": model.settings, "lost": [one.model_dump() for one in model.lost],
                "report": found[model.name],
            })  # fmt: skip
    why_not: list[str] = []
    early = chosen.stop_width is not None
    compared = compare(
        named[:MAX_COMPARED], against="all", level=chosen.level, sequential=early, leave_out=why_not.append
    )
    return {
        "folder": folder,
        **chosen.model_dump(include=same - {"stop_width"}),
        "models": models,
        "comparisons": [one.to_json() for one in compared],
        "why_not": "; ".join(why_not),
    }


def _evaluated(index: Index, folder: str) -> tuple[Results, dict[str, Any]]:
    """The results on file and the report of each model."""
    file = index.root.inside(index.root.path / folder / RESULTS_FILE)
    if file is None or file.stat().st_size > MAX_RESULTS:
        raise MissingError("the evaluation's results are gone, or too large to read")
    return _read_results(file, file.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _read_results(file: Path, mtime: int) -> tuple[Results, dict[str, Any]]:  # noqa: ARG001  a file that changed is another
    try:
        results = Results.read(file)
        if len({outcome.type for model in results.models for outcome in model.outcomes}) > MAX_TYPES:
            raise MissingError(f"the results name more than {MAX_TYPES} types of task")
        # Computed from the outcomes again: the file may come from anywhere, so its own summary is not trusted.
        return results, reports(results.models, results.level, results.stop_width is not None)
    except (InputError, ArithmeticError) as error:  # numbers that no episode can have
        raise MissingError(str(error)) from None


# The curves of a training run: the lines of `metrics.jsonl` that a page does not have yet.

# Read in pieces, so that a run of a million steps opens too.
MAX_PIECE = 8 << 20
MAX_METRICS = 400
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
        "state": state_of(index, folder),
        "lines": [line for text in whole.splitlines() if (line := _line(text)) is not None],
    }
    if begin == 0:
        here = f"{index.root.path}/"  # paths inside the folder that is shown are relative to it
        answer["settings"] = {
            key: value.removeprefix(here) if isinstance(value, str) else value
            for key, value in stage_settings(index, folder).items()
        }
    return answer


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
    file = index.root.inside(index.root.path / folder / LINEAGE_FILE)
    if folder not in index.contents.evolutions or file is None:
        raise MissingError("there is no such evolution in the folder")
    try:
        if file.stat().st_size > MAX_LINEAGE:
            raise MissingError("the evolution's lineage is too large to read")
        found = read_pedigree(file)
    except OSError as error:
        raise MissingError(f"the evolution's lineage cannot be read: {error.strerror}") from None
    winner = _winner(read_json(index, f"{folder}/report.json"), found)
    metric = winner["metric"] if winner else _metric(stage_settings(index, folder))
    last = [one for one in found.members if one.generation == found.last]
    leader = winner["name"] if winner else min(last, key=lambda one: one.place).name if last else ""
    return {
        "folder": folder,
        "state": state_of(index, folder),
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


def _winner(report: dict[str, Any], found: Pedigree) -> dict[str, Any] | None:
    """What the report says of the winner, if it is a member of the last generation: a resumed run has an old report."""

    def number(value: Any) -> Any:
        return value if is_finite(value) else None

    def measured(score: Any) -> dict[str, Any]:
        score = score if isinstance(score, dict) else {}
        interval = score.get("interval")
        whole = isinstance(interval, list) and len(interval) == 2 and all(map(is_finite, interval))
        fitness, tasks = number(score.get("fitness")), number(score.get("tasks"))
        return {"fitness": fitness, "interval": interval if whole else None, "tasks": tasks}

    about, metric = report.get("winner"), report.get("metric")
    name = about.get("name") if isinstance(about, dict) else None
    if not any(member.name == name and member.generation == found.last for member in found.members):
        return None
    return {
        "name": name,
        "metric": metric[:100] if isinstance(metric, str) else "fitness",
        "selected": measured(report.get("selected")),
        "untouched": measured(report.get("untouched")),
        "empty_updates": number(report.get("empty_updates")) or 0,
        **{key: number(report.get(key)) for key in ("shrinkage", "updates", "tokens_computed")},
    }


def _metric(settings: dict[str, Any]) -> str:
    """What fitness is, before there is a report."""
    given, named = settings.get("metric"), settings.get("environment")
    if isinstance(given, str) and given != "auto":
        return given[:100]
    return "success" if named else "loss" if settings.get("method") == "sft" else "accuracy"
