"""The subject of a card: the weights in a folder, their lineage and their evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bough.cards.lineage import Lineage, lineage, read_json
from bough.errors import InputError
from bough.evaluation.results import FILE_NAME as RESULTS
from bough.evaluation.results import Results
from bough.rundir import RunDir
from bough.runs.kinds import KINDS
from bough.runs.recipe import FILE_NAME, Recipe, plan, read_recipe
from bough.runs.record import StageRecord


@dataclass(frozen=True)
class Evaluation:
    """Results and the folder with their episodes. `note` is a gate's verdict."""

    folder: Path
    results: Results
    note: str = ""


@dataclass(frozen=True)
class Subject:
    """Weights and what is known about them. `run` is the folder that contains everything."""

    name: str
    about: str
    run: Path
    weights: Path
    lineage: Lineage
    evaluations: tuple[Evaluation, ...]

    @property
    def is_adapter(self) -> bool:
        return (self.weights / "adapter_config.json").is_file()


def find_subject(folder: Path, more: list[Path]) -> Subject:
    """The weights of `folder`: a recipe's run, a training stage, or a folder of weights. `more` are evaluations."""
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder")
    further = [Evaluation(path if path.is_dir() else path.parent, Results.read(path)) for path in more]
    if (folder / FILE_NAME).is_file():
        recipe = read_recipe(folder)
        return _subject(_accepted(folder, recipe), recipe.name, folder, recipe, further)
    above = folder.resolve().parent
    stage = above if _is_weights(folder) and RunDir(above).config.is_file() else folder
    if not RunDir(stage).config.is_file():
        raise InputError(
            f"{folder}: it has neither a recipe.yaml nor a config.yaml; "
            "name the folder of a `bough run`, or of a `bough sft`, `dpo` or `grpo`"
        )
    above = stage.resolve().parent
    if (above / FILE_NAME).is_file():
        recipe = read_recipe(above)
        return _subject(stage, f"{recipe.name} {stage.resolve().name}", above, recipe, further)
    return _subject(stage, stage.resolve().name, stage, None, further)


def _subject(stage: Path, name: str, run: Path, recipe: Recipe | None, further: list[Evaluation]) -> Subject:
    weights = RunDir(stage).final
    found = lineage(stage)
    if not _is_weights(weights):
        raise InputError(f"{weights}: it has no weights; has the stage finished?")
    evaluations = [*_evaluations(run, recipe), *further] if recipe is not None else further
    return Subject(name, recipe.about if recipe is not None else "", run, weights, found, tuple(evaluations))


def _accepted(folder: Path, recipe: Recipe) -> Path:
    """The stage whose weights the run ends with: the newest that no gate rejected."""
    model: Path | None = None
    for stage in plan(recipe):
        here = folder / stage.folder
        record, kind = StageRecord.read(here), KINDS.get(stage.verb)
        if kind is None or record is None or not record.finished:
            continue
        if kind.writes == "model":
            model = here
        elif record.goes_on_with is not None:
            # A path from a file must not lead out of the run: the card is written there, and the weights are uploaded.
            inside = (folder / record.goes_on_with).resolve()
            ours = inside.is_dir() and inside.is_relative_to(folder.resolve())
            model = folder / inside.parent.relative_to(folder.resolve()) if ours else None
    if model is None:
        raise InputError(f"{folder}: no training stage of this run has finished, or the gates rejected all of them")
    return model


def _evaluations(folder: Path, recipe: Recipe) -> list[Evaluation]:
    found = []
    for stage in plan(recipe):
        record = StageRecord.read(folder / stage.folder)
        # `bough eval --eval-file` writes results of another kind.
        if record is not None and record.finished and _has_episodes(folder / stage.folder / RESULTS):
            found.append(Evaluation(folder / stage.folder, Results.read(folder / stage.folder), record.note))
    return found


def _has_episodes(file: Path) -> bool:
    return str(read_json(file, {}).get("bough", "")).startswith("evaluation/")


def _is_weights(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("adapter_config.json", "config.json"))
