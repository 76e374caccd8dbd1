"""The weights that a card is about, their lineage, and how they were evaluated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bough.commands.table import stages
from bough.config.groups import BASELINES
from bough.config.run_folder import RunDir
from bough.errors import InputError
from bough.evaluation.comparison import compare
from bough.evaluation.results import FILE_NAME as RESULTS
from bough.evaluation.results import Lost, ModelResult, Outcome, Results
from bough.evaluation.success import reports
from bough.experiments.recipe import FILE_NAME, Recipe, plan, read_recipe
from bough.experiments.record import StageRecord
from bough.files import nearby
from bough.ledger import plural
from bough.models.resolve import BUILT_IN
from bough.report.lineage import BaseModel, Lineage, code, lineage, plain, read_json, table
from bough.terminal.console import rate, row, sentence


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
    evaluations = []
    for planned in plan(recipe) if recipe is not None else ():
        here = run / planned.folder
        record = StageRecord.read(here)
        # `bough eval --eval-file` writes results of another kind.
        played = str(read_json(here / RESULTS, {}).get("bough", "")).startswith("evaluation/")
        if record is not None and record.finished and played:
            evaluations.append(Evaluation(here, Results.read(here), record.note))
    evaluations += further
    return Subject(name, recipe.about if recipe is not None else "", run, weights, found, tuple(evaluations))


def _accepted(folder: Path, recipe: Recipe) -> Path:
    """The stage whose weights the run ends with: the newest that no gate rejected."""
    model: Path | None = None
    for stage in plan(recipe):
        here = folder / stage.folder
        record, kind = StageRecord.read(here), stages().get(stage.verb)
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


def _is_weights(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("adapter_config.json", "config.json"))


# The evaluation section of a card: models that were evaluated on the same tasks, side by side.

THIS, THIS_MODEL = "this adapter", "this model"
DECODING = ("engine", "temperature", "max_new_tokens", "max_turns")


@dataclass(frozen=True)
class Measured:
    """One environment, one set of tasks, and every model evaluated on them. `own` is this card's model."""

    settings: Results
    models: list[ModelResult]
    own: str | None
    sequential: bool

    @cached_property
    def reports(self) -> dict[str, Any]:
        return reports(self.models, self.settings.level, self.sequential)


def measured(subject: Subject, base: BaseModel) -> list[Measured]:
    """The evaluations, grouped by tasks, with models named by their stage."""
    together: dict[str, list[Evaluation]] = {}
    for evaluation in subject.evaluations:
        results = evaluation.results
        played = list(_tasks(results.models).items())
        if results.stop_width is not None:  # each stopped where its own result was clear
            played = played[:1]
        settings = [results.environment, results.options, results.split, results.seed, results.level, results.attempts]
        together.setdefault(json.dumps([*settings, sorted(played)]), []).append(evaluation)
    return [_together(evaluations, subject, base) for evaluations in together.values()]


def _tasks(models: Sequence[ModelResult]) -> dict[str, str]:
    """The tasks that the models were given, with digests of their contents."""
    found: dict[str, str] = {}
    for model in models:
        given: list[Outcome | Lost] = [*model.outcomes, *model.lost]
        for one in given:
            found[one.task] = found.get(one.task) or one.digest or ""
    return found


def model_of(model: ModelResult, evaluation: Evaluation) -> Path | None:
    """The folder of weights that an evaluation calls by this model's name, if it is one."""
    written = model.settings.get("adapter") or model.name
    if written in (*BASELINES, *BUILT_IN):
        return None
    return nearby(str(written).partition("@")[0], evaluation.folder)  # without the digest of a folder elsewhere


def _together(evaluations: list[Evaluation], subject: Subject, base: BaseModel) -> Measured:
    models: dict[str, ModelResult] = {}
    own = None
    for evaluation in evaluations:
        for model in evaluation.results.models:
            name = _name(model, evaluation, subject, base)
            known = models.get(name)
            if known is not None and known.outcomes == model.outcomes:
                continue  # the same episodes are in two evaluations
            shown = name if known is None else f"{name} ({evaluation.folder.name})"
            models[shown] = model.model_copy(update={"name": shown})
            own = shown if name in (THIS, THIS_MODEL) else own
    early = any(evaluation.results.stop_width is not None for evaluation in evaluations)
    return Measured(evaluations[0].results, list(models.values()), own, early)


def _name(model: ModelResult, evaluation: Evaluation, subject: Subject, base: BaseModel) -> str:
    weights = model_of(model, evaluation)
    if weights is not None:
        if weights.resolve() == subject.weights.resolve():
            return THIS if subject.is_adapter else THIS_MODEL
        for stage in subject.lineage.stages:
            if weights.resolve() == stage.weights.resolve():
                return f"after {stage.name}"
        return "/".join(weights.parts[-2:]) if weights.name in ("final", "best") else weights.name
    return f"{base.shown} (base)" if model.name == subject.lineage.base else model.name


def section(found: Sequence[Measured]) -> Iterator[str]:
    """The paragraphs of the evaluation."""
    if not found:
        yield "This model has not been evaluated in an environment."
        return
    for group in found:
        yield f"### {plain(shortened(group.settings.environment))}"
        yield _played(group)
        yield from _tables(group)


def _tables(group: Measured) -> Iterator[str]:
    found = group.reports
    headings = [f"success ({group.settings.level:.0%} interval)", "episodes", "reward", "turns", "tokens"]
    rows = [[f"**{plain(name)}**" if name == group.own else plain(name), *row(one)] for name, one in found.items()]
    yield table(["model", *headings, "invalid replies"], rows)
    intervals = [one["success"]["interval"] for one in found.values() if one["success"]["interval"]]
    methods = dict.fromkeys(interval["method"] for interval in intervals)
    yield (
        f"Intervals: {plain('; '.join(methods))}. Episodes of unknown outcome are left out and counted; "
        "lost ones could have ended either way, and intervals allow for both."
    )
    if len(group.models) > 1:
        try:
            compared = compare(group.models, level=group.settings.level, sequential=group.sequential)
            yield "\n".join(f"- {plain(sentence(one.to_json()))}" for one in compared)
        except InputError as error:
            yield f"The models cannot be compared with each other: {plain(error)}"
    types = {kind for one in found.values() for kind in one["types"]}
    ends = {end for one in found.values() for end in one["failures"]}
    mistakes = {why for one in found.values() for why, measure in one["mistakes"].items() if measure["mean"]}
    for title, key, kinds in (
        ("success by type of task", "types", types if len(types) > 1 else ()),
        ("how failures ended", "failures", ends),
        ("episodes with a mistake", "mistakes", mistakes),
    ):
        rows = []
        for kind in sorted(kinds):
            values = [one[key].get(kind) for one in found.values()]
            cells = [str(value or 0) for value in values] if key == "failures" else list(map(rate, values))
            rows.append(["ended unsolved" if (key, kind) == ("failures", "done") else code(kind), *cells])
        if rows:
            yield table([title, *map(plain, found)], rows)


def _played(group: Measured) -> str:
    results, models = group.settings, group.models
    number = plural(len(_tasks(models)), "task")
    said = [f"up to {number}" if group.sequential else number]
    said += [f"split {code(results.split)}" if results.split else "from a file", f"seed {results.seed}"]
    if results.attempts > 1:
        said.append(f"{results.attempts} attempts at each task")
    if results.options:
        said.append(f"options {code(json.dumps({key: shortened(value) for key, value in results.options.items()}))}")
    for key in DECODING:
        values = {json.dumps(model.settings.get(key)) for model in models if model.settings.get(key) is not None}
        if len(values) == 1:
            said.append(f"{key.replace('_', ' ')} {plain(json.loads(values.pop()))}")
    until = ", until the result was clear" if group.sequential else ""
    return f"All models were evaluated on the same tasks with the same seeds{until}: {', '.join(said)}."


def shortened(value: Any) -> Any:
    """An environment or an option that is a path, by its last part."""
    return Path(value).name if isinstance(value, str) and "/" in value else value
