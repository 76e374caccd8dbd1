"""The runs in a folder: those of recipes, and the folders that single commands wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bough.commands import table
from bough.config.run_folder import MetricsFile, RunDir
from bough.errors import InputError
from bough.experiments.recipe import FILE_NAME, NAME, plan, read_recipe, read_settings
from bough.experiments.record import StageRecord, numbers_of
from bough.ledger import is_finite, plural

RESULTS = "results.json"


@dataclass(frozen=True)
class ListedRun:
    """One run: the recipe or command that made it, how far it has come, and its result in a few words."""

    name: str
    made_by: str
    progress: str
    result: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def list_runs(folder: str | Path = "runs") -> list[ListedRun]:
    """List the runs in the subfolders of a folder, by name: recipes and single commands."""
    if not Path(folder).is_dir():
        raise InputError(f"{folder}: there is no such folder")
    found = []
    for path in sorted(one for one in Path(folder).iterdir() if one.is_dir() and not one.name.startswith(".")):
        if (path / FILE_NAME).is_file():
            found.append(_recipe_run(path))
        elif (command := command_of(path)) is not None:
            found.append(command_run(path, command))
    return found


def _recipe_run(folder: Path) -> ListedRun:
    try:
        recipe = read_recipe(folder)
        records = [StageRecord.read(folder / stage.folder) for stage in plan(recipe)]
    except InputError as error:
        return ListedRun(folder.name, "recipe", "cannot be read", str(error))
    finished = [record for record in records if record is not None and record.finished]
    last = f"last stage: {finished[-1].name}" if finished else ""
    return ListedRun(folder.name, f"recipe {recipe.name}", f"{len(finished)} of {plural(len(records), 'stage')}", last)


def command_of(folder: Path) -> str | None:
    """The command that wrote a folder; None if it is not the folder of a run."""
    if (folder / RESULTS).is_file():
        return "eval"
    try:
        return read_settings(folder / NAME)[0]
    except InputError:
        return None


def command_run(folder: Path, command: str) -> ListedRun:
    """The folder of a single command."""
    kind = table.stages().get(command)
    if kind is None or kind.writes != "model":
        done = (folder / RESULTS if command == "eval" else folder / "report.json").is_file()
        return ListedRun(folder.name, command, "done" if done else "unfinished", _numbers(numbers_of(folder)))
    step, losses = None, list[tuple[float, int]]()
    try:
        for line in MetricsFile.each(RunDir(folder).metrics):
            step = line["step"]
            if is_finite(line.get("loss")):
                losses = [*losses[:1], (line["loss"], step)]
    except OSError as error:
        return ListedRun(folder.name, command, "cannot be read", f"{error.filename}: {error.strerror}")
    progress = "done" if RunDir(folder).final.is_dir() else f"unfinished{f', step {step}' if step is not None else ''}"
    result = ""
    if losses:
        result = f"loss {losses[0][0]:.4g} → {losses[-1][0]:.4g} in {plural(losses[-1][1], 'step')}"
    return ListedRun(folder.name, command, progress, result)


def _numbers(numbers: Mapping[str, float]) -> str:
    """Success, episodes and lost episodes; where several models were evaluated, of each in turn."""

    def of_each(*words: str) -> list[float]:
        """One value per model: `success`, or `success_1`, `success_2`, …"""
        return [value for key, value in numbers.items() if key.rstrip("_0123456789") in words]

    rates = [f"{value:.1%}" for value in of_each("success", "success_rate")]
    episodes, lost = (" / ".join(f"{n:,.0f}" for n in of_each(word)) for word in ("episodes", "lost"))
    played = "1 episode" if episodes == "1" else f"{episodes} episodes"
    parts = {"success " + " / ".join(rates): rates, played: episodes, f"{lost} lost": lost}
    return ", ".join(part for part, given in parts.items() if given)
