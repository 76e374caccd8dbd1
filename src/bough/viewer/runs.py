"""The first page: which runs there are, their stages in order, what each was made of, how success went along."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from bough.errors import BoughError
from bough.runs.recipe import Recipe, plan, read_recipe
from bough.viewer.evaluations import rates
from bough.viewer.index import Index
from bough.viewer.queries import counts

MAX_JSON = 4 << 20
# A stage whose files were written this recently is still at it.
FRESH_S = 60


def overview(index: Index) -> dict[str, Any]:
    """Everything the first page shows."""
    contents, here = index.contents, index.root.path
    by_folder: dict[str, list[dict[str, Any]]] = {}
    for row in counts(index):
        by_folder.setdefault(_stage_of(index, row["file"]), []).append(row)
    folders = sorted({*contents.stages, *contents.training, *contents.evaluations, *by_folder} - {""})
    stages = {folder: _stage(index, folder, by_folder.get(folder, [])) for folder in folders}
    runs = []
    # A recipe that was never run is a file like any other.
    for recipe in {str(Path(stage).parent): None for stage in contents.stages}:
        members = [stages.pop(name) for name in list(stages) if str(Path(name).parent) == recipe]
        runs.append(_run(here, recipe, members))
        runs[-1]["stages"] += _to_come(here / recipe, {member["name"] for member in members})
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
        "problems": index.problems(),
        "busy": index.busy,
    }  # fmt: skip


def read_json(index: Index, name: str) -> Any:
    """A small JSON file of the folder; None where there is none that can be read."""
    file = index.root.inside(index.root.path / name)
    try:
        if file is None or file.stat().st_size > MAX_JSON:
            return None
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def state_of(index: Index, folder: str, record: Any) -> str:
    """Whether a stage is done, running or was cut short."""
    here = index.root.path / folder
    if isinstance(record, dict):
        done = bool(record.get("finished"))
    elif folder in index.contents.training or (here / "config.yaml").exists():
        done = any((here / name).exists() for name in ("report.json", "results.json", "final"))
    else:
        done = True
    if done:
        return "done"
    return "running" if time.time() - _newest(here) < FRESH_S else "cut short"


def _stage_of(index: Index, file: str) -> str:
    """The folder of the stage that a data file belongs to: the nearest one above it that is a stage, else its own."""
    known = {*index.contents.stages, *index.contents.evaluations, *index.contents.training}
    for folder in map(str, Path(file).parents):
        if folder in known:
            return folder
    return str(Path(file).parent)


def _stage(index: Index, folder: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    record = read_json(index, f"{folder}/stage.json")
    known = record if isinstance(record, dict) else {}
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
        "success": rates(index, folder) if folder in index.contents.evaluations else [],
        "report": _numbers(read_json(index, f"{folder}/report.json")),
    }


def _guess(index: Index, folder: str, rows: list[dict[str, Any]]) -> str:
    if folder in index.contents.evaluations:
        return "eval"
    if folder in index.contents.training:
        return "training"
    return "collect" if (index.root.path / folder / "config.yaml").exists() else "data" if rows else ""


def _run(here: Path, folder: str, stages: list[dict[str, Any]]) -> dict[str, Any]:
    recipe = _recipe(here / folder)
    shown: dict[str, str] = {}
    if recipe is not None:
        shown = {key: str(getattr(recipe, key)) for key in ("name", "about", "model", "seed")}
        if recipe.world.get("environment"):
            shown["environment"] = str(recipe.world["environment"])
    return {"name": Path(here / folder).name, "folder": folder, "recipe": shown, "stages": stages}


def _recipe(folder: Path) -> Recipe | None:
    """What the run was made with, if its file still says so."""
    try:
        return read_recipe(folder)
    except (BoughError, OSError, TypeError):
        return None


def _to_come(folder: Path, begun: set[str]) -> list[dict[str, Any]]:
    """The stages of the recipe that have not begun yet."""
    recipe = _recipe(folder)
    try:
        stages = plan(recipe) if recipe is not None else []
    except BoughError:
        return []
    nothing: dict[str, Any] = {"inputs": {}, "outputs": {}, "files": [], "success": [], "report": {}, "note": ""}
    nothing |= {"seconds": None, "training": False, "evaluation": False, "state": "to come"}
    return [
        {"folder": stage.folder, "name": stage.folder, "verb": stage.verb, **nothing}
        for stage in stages
        if stage.folder not in begun
    ]


def _lineage(stages: list[dict[str, Any]]) -> None:
    """Which stage made what a stage was made of: by the digest of the content, which both have on file."""
    made: dict[str, str] = {}
    for stage in stages:
        stage["made_of"] = [
            {"input": name, "stage": made.get(digest), "value": digest} for name, digest in stage["inputs"].items()
        ]
        made |= dict.fromkeys(stage["outputs"].values(), stage["folder"])


def _newest(folder: Path) -> float:
    try:
        return max((entry.stat().st_mtime for entry in folder.iterdir()), default=0.0)
    except OSError:
        return 0.0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> dict[str, str]:
    return {str(key): str(part) for key, part in value.items()} if isinstance(value, dict) else {}


def _numbers(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        return {}
    return {k: v for k, v in value.items() if isinstance(v, int | float) and not isinstance(v, bool)}
