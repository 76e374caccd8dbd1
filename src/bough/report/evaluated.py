"""The weights that a card is about, their lineage, and how they were evaluated."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bough.commands.table import stages
from bough.config.run_folder import RunDir
from bough.errors import InputError
from bough.evaluation.comparison import compare
from bough.evaluation.contest import BASELINES
from bough.evaluation.results import FILE_NAME as RESULTS
from bough.evaluation.results import ModelResult, Results
from bough.evaluation.success import Measure, SuccessReport, report
from bough.experiments.recipe import FILE_NAME, Recipe, plan, read_recipe
from bough.experiments.record import StageRecord
from bough.files import nearby
from bough.ledger import plural
from bough.models.resolve import BUILT_IN
from bough.report.lineage import (
    BaseModel,
    Lineage,
    code,
    lineage,
    plain,
    read_json,
    table,
)
from bough.terminal.tables import sentence


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

    @property
    def reports(self) -> dict[str, SuccessReport]:
        level, early = self.settings.level, self.sequential
        return {
            model.name: report(model.outcomes, lost=model.lost, level=level, sequential=early) for model in self.models
        }


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
        for task, digest in [(one.task, one.digest) for one in model.outcomes] + [
            (one.task, one.digest) for one in model.lost
        ]:
            found[task] = found.get(task) or digest or ""
    return found


def model_of(model: ModelResult, evaluation: Evaluation) -> Path | None:
    """The folder of weights that an evaluation calls by this model's name, if it is one."""
    written = model.settings.get("adapter") or model.name
    if written in (*BASELINES, *BUILT_IN):
        return None
    return nearby(str(written).partition("@")[0], evaluation.folder)  # without the digest of a folder elsewhere


def gate_notes(subject: Subject, base: BaseModel) -> list[str]:
    """The verdicts of the run's gates, with this card's names for the models."""
    names = {
        model.name: _name(model, evaluation, subject, base)
        for evaluation in subject.evaluations
        for model in evaluation.results.models
    }
    notes = [evaluation.note for evaluation in subject.evaluations if evaluation.note]
    if not names:
        return notes
    known = re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)))
    return [known.sub(lambda match: names[match[0]], note) for note in notes]


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


def section(found: Sequence[Measured], notes: Sequence[str]) -> Iterator[str]:
    """The paragraphs of the evaluation."""
    if not found:
        yield "This model has not been evaluated in an environment."
        return
    for group in found:
        yield from _group(group)
    for note in notes:
        yield f"Gate of the run: {plain(note)}"


def _group(group: Measured) -> Iterator[str]:
    results, reports = group.settings, group.reports
    yield f"### {plain(shortened(results.environment))}"
    yield _played(group)
    level = f"{results.level:.0%}"
    headings = ["model", f"success ({level} interval)", "episodes", "reward", "turns", "tokens", "invalid replies"]
    yield table(headings, [[_marked(name, group.own), *_row(one)] for name, one in reports.items()])
    methods = dict.fromkeys(one.success.interval.method for one in reports.values() if one.success.interval)
    yield (
        f"Intervals: {plain('; '.join(methods))}. Episodes of unknown outcome are left out and counted; "
        "lost ones could have ended either way, and intervals allow for both."
    )
    yield from _compared(group)
    types = sorted({kind for one in reports.values() for kind in one.types})
    if len(types) > 1:
        rows = [[code(kind), *(_rate(one.types.get(kind)) for one in reports.values())] for kind in types]
        yield table(["success by type of task", *map(plain, reports)], rows)
    ends = sorted({end for one in reports.values() for end in one.failures})
    if ends:
        rows = [
            [ending(end, failed=True), *(str(one.failures.get(end, 0)) for one in reports.values())] for end in ends
        ]
        yield table(["how failures ended", *map(plain, reports)], rows)
    mistakes = sorted({reason for one in reports.values() for reason, rate in one.mistakes.items() if rate.mean})
    if mistakes:
        rows = [[code(reason), *(_rate(one.mistakes.get(reason)) for one in reports.values())] for reason in mistakes]
        yield table(["episodes with a mistake", *map(plain, reports)], rows)


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


def _compared(group: Measured) -> Iterator[str]:
    if len(group.models) < 2:
        return
    try:
        found = compare(group.models, level=group.settings.level, sequential=group.sequential)
    except InputError as error:
        yield f"The models cannot be compared with each other: {plain(error)}"
        return
    yield "\n".join(f"- {plain(sentence(one.to_json()))}" for one in found)


def _row(found: SuccessReport) -> list[str]:
    missing = [f"{count} {what}" for what, count in (("unknown", found.unknown), ("lost", found.lost)) if count]
    invalid = "–" if found.invalid_rate is None else f"{found.invalid_rate:.1%}"
    means = [_number(one.mean) for one in (found.reward, found.turns, found.completion_tokens)]
    return [_rate(found.success), ", ".join([str(found.episodes), *missing]), *means, invalid]


def _marked(name: str, own: str | None) -> str:
    return f"**{plain(name)}**" if name == own else plain(name)


def _rate(measure: Measure | None) -> str:
    if measure is None or measure.mean is None:
        return "–"
    interval = measure.interval
    where = f" ({100 * interval.low:.1f}–{100 * interval.high:.1f})" if interval else ""
    return f"{100 * measure.mean:.1f}%{where}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ending(stop: str, *, failed: bool = False) -> str:
    """How episodes ended. "done" in a record only means that the environment ended them, solved or not."""
    if stop == "done":
        return "ended unsolved" if failed else "ended by the environment"
    return code(stop)


def shortened(value: Any) -> Any:
    """An environment or an option that is a path, by its last part."""
    return Path(value).name if isinstance(value, str) and "/" in value else value
