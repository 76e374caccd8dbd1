"""A model card: the README of trained weights, written from the files of their run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from pprint import pformat
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, Field

from bough.chat.template import ChatTemplate, Spoken, load_template, with_hint
from bough.commands.table import stages
from bough.config.groups import ReportConfig
from bough.config.run_folder import RunDir
from bough.data.base import Sample
from bough.data.reader import Reader
from bough.errors import InputError
from bough.evaluation.comparison import compare
from bough.evaluation.contest import BASELINES, folder_name
from bough.evaluation.results import FILE_NAME as RESULTS
from bough.evaluation.results import ModelResult, Results
from bough.evaluation.success import Measure, SuccessReport, report
from bough.experiments.recipe import FILE_NAME, Recipe, plan, read_recipe
from bough.experiments.record import StageRecord
from bough.files import cache_folder, nearby, write_atomically
from bough.ledger import plural
from bough.models.resolve import BUILT_IN
from bough.report.lineage import (
    BaseModel,
    Data,
    Lineage,
    Stage,
    base_model,
    code,
    fenced,
    lineage,
    pedigrees,
    plain,
    read_json,
    table,
)
from bough.terminal.console import printable
from bough.terminal.tables import sentence
from bough.types import Group, Trajectory

HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


LANGUAGE = re.compile(r"[a-z]{2,3}")


LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")


def _hub_id(value: str) -> str:
    if not HUB_ID.fullmatch(value) or len(value) > 96 or "--" in value or ".." in value:
        raise ValueError("a name on the Hub is written org/name")
    return value


def _language(value: str) -> str:
    if not LANGUAGE.fullmatch(value):
        raise ValueError("a language is an ISO 639 code such as en")
    return value


def _license(value: str) -> str:
    if not LICENSE.fullmatch(value):
        raise ValueError("a license is one of the Hub's identifiers, such as apache-2.0, mit or other")
    return value


HubId = Annotated[str, AfterValidator(_hub_id)]


RUN = "the run folder of a recipe or of one training stage"


class CardConfig(ReportConfig):
    """Writes the model card (README.md) of a trained model, from the files of its run alone."""

    run: Path = Field(description=RUN, json_schema_extra={"positional": True})
    repo: HubId | None = Field(None, description="the adapter's name on the Hub, org/name, for the usage example")
    name: str | None = Field(
        None, min_length=1, description="title of the card (default: the name of the repo or the run)"
    )
    base_model: HubId | None = Field(
        None, description="the base model's name on the Hub, if the run only has it as a local folder"
    )
    license: Annotated[str, AfterValidator(_license)] | None = Field(
        None, description="license of the adapter, as a Hub identifier: apache-2.0, mit, other"
    )
    datasets: list[HubId] = Field([], description="datasets on the Hub that the training data came from")
    language: list[Annotated[str, AfterValidator(_language)]] = Field(
        [], description="languages as ISO 639 codes: en, de"
    )
    evaluations: list[Path] = Field([], description="more results of `bough eval --environment` to report")
    output: Path | None = Field(
        None,
        description="the file to write (default: README.md in the folder of the weights)",
        json_schema_extra={"short": "-o"},
    )
    overwrite: bool = Field(False, description="replace an existing card")


@dataclass(frozen=True)
class Card:
    """The text of a card, where to write it, and what is missing from it."""

    text: str
    path: Path
    missing: tuple[str, ...]


def make_card(config: CardConfig) -> Card:
    """The card of the weights in `config.run`."""
    subject = find_subject(config.run, config.evaluations)
    base = base_model(subject.lineage.base, config.base_model)
    found = measured(subject, base)
    title = config.name or (config.repo.partition("/")[2] if config.repo else subject.name)
    parts = [
        front_matter(subject, base, found, title, config),
        f"# {plain(title)}",
        *_body(subject, base, found, config),
    ]
    text = without_places("\n\n".join(parts) + "\n", _places(subject))
    return Card(text, config.output or subject.weights / "README.md", tuple(_missing(base, found, config)))


def write_card(config: CardConfig) -> Card:
    """Makes the card and writes it; an existing file is replaced only with `overwrite`."""
    made = make_card(config)
    if made.path.is_dir():
        raise InputError(f"{made.path} is a folder; --output must be a file")
    if made.path.exists() and not config.overwrite:
        raise InputError(f"{made.path} exists; give --overwrite to replace it, or another --output")
    try:
        made.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(made.path, made.text)
    except OSError as error:
        raise InputError(f"{made.path}: cannot be written: {error.strerror}") from None
    return made


def _body(subject: Subject, base: BaseModel, found: Sequence[Measured], config: CardConfig) -> Iterator[str]:
    lineage = subject.lineage
    yield _introduction(subject, base)
    yield "## Training objective"
    yield from objective(subject.about, lineage)
    yield "## Training pipeline"
    yield fenced(pipeline(base, lineage))
    if ancestry := list(pedigrees(lineage)):
        yield "## Pedigree"
        yield from ancestry
    yield "## Data"
    yield from data(lineage)
    yield "## Hyper-parameters"
    yield settings(lineage.stages)
    yield "## Evaluation"
    yield from section(found, gate_notes(subject, base))
    yield "## Usage"
    yield from usage(subject, base, config.repo)
    yield "## Sources and terms"
    yield _sources(subject, base, config)
    yield (
        "Use of this model is subject to the licence of the base model and to the terms of the data. It is intended "
        "for the environments named above and has not been evaluated anywhere else. Review what an agent does before "
        "giving it access to anything important."
    )


def _introduction(subject: Subject, base: BaseModel) -> str:
    methods = " → ".join(stage.verb.upper() for stage in subject.lineage.stages)
    link = f"[{base.hub_id}](https://huggingface.co/{base.hub_id})" if base.hub_id else plain(base.name)
    if subject.is_adapter:
        what = f"A LoRA adapter for {link}, trained with {methods}. The base model is loaded separately."
    else:
        what = f"A model based on {link}, all weights trained with {methods}."
    return f"{what} {base.note}".strip()


def _sources(subject: Subject, base: BaseModel, config: CardConfig) -> str:
    rows = [["base model", plain(base.shown), base.license or "see its page"]]
    if subject.lineage.start:
        rows.append(["start adapter", plain(subject.lineage.start), "–"])
    rows += [["data", plain(name), "see its page"] for name in all_datasets(subject, config)]
    files = [stage.data.name for stage in subject.lineage.stages if stage.data is not None and not stage.data.hub_id]
    rows += [["data", plain(name), "–"] for name in dict.fromkeys(files)]
    rows.append(["this model", plain(config.repo or subject.name), config.license or "not stated"])
    adapter = read_json(subject.weights / "adapter_config.json", {})
    peft = f", PEFT {plain(adapter['peft_version'])}" if adapter.get("peft_version") else ""
    rows.append(["made with", f"Bough {version('bough')}{peft}", "MIT"])
    return table(["component", "source", "licence"], rows)


def _places(subject: Subject) -> list[Path]:
    """Folders whose names are specific to this machine, unlike /home and /tmp."""
    run = subject.run.resolve()
    own = [run, *run.parents, Path.cwd(), cache_folder()]
    return [Path.home(), *(place for place in own if len(place.parts) > 2)]


def _missing(base: BaseModel, found: Sequence[Measured], config: CardConfig) -> Iterator[str]:
    if base.hub_id is None:
        yield f"the base model is only known as {code(base.name)}; give its name on the Hub with --base-model org/name"
    if config.license is None:
        yield "no licence is stated; give one with --license"
    if config.repo is None:
        yield "the usage section has no name to load; give it with --repo org/name"
    if not any(group.own for group in found):
        yield "no evaluation of these weights was found; name results of `bough eval --environment` with --evaluations"


# The subject of a card: the weights in a folder, their lineage and their evaluations.


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

THIS = "this adapter"
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
        key = json.dumps([results.environment, results.options, results.split, results.seed, results.level])
        together.setdefault(key, []).append(evaluation)
    return [_together(evaluations, subject, base) for evaluations in together.values()]


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
            own = shown if name == THIS else own
    early = any(evaluation.results.stop_width is not None for evaluation in evaluations)
    return Measured(evaluations[0].results, list(models.values()), own, early)


def _name(model: ModelResult, evaluation: Evaluation, subject: Subject, base: BaseModel) -> str:
    weights = model_of(model, evaluation)
    if weights is not None:
        if weights.resolve() == subject.weights.resolve():
            return THIS if subject.is_adapter else "this model"
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
    yield _played(results, group.models)
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


def _played(results: Results, models: Sequence[ModelResult]) -> str:
    said = [f"split {code(results.split)}" if results.split else "tasks from a file", f"seed {results.seed}"]
    if results.attempts > 1:
        said.append(f"{results.attempts} attempts at each task")
    if results.options:
        said.append(f"options {code(json.dumps({key: shortened(value) for key, value in results.options.items()}))}")
    for key in DECODING:
        values = {json.dumps(model.settings.get(key)) for model in models if model.settings.get(key) is not None}
        if len(values) == 1:
            said.append(f"{key.replace('_', ' ')} {plain(json.loads(values.pop()))}")
    return f"All models were evaluated on the same tasks with the same seeds: {', '.join(said)}."


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


# The training sections of a card: the aim, the data and the settings of each stage.

REASONS = {
    "loop": "repeats an earlier action with the same result, without progress",
    "loop_prev_action": "repeats the previous action without progress",
    "premature_success": "claims success before the task is solved",
    "task_succeeded_negative": "claims success before the task is solved",
    "implausible_location": "searches in an implausible place",
    "invalid_action": "is not a valid action",
    "wasted_step": "undoes the previous step",
    "success_over_failure": "failed; another attempt at the same task succeeded",
    "more_progress": "made less progress than another attempt at the same task",
    "right_step": "a mistake that a successful attempt avoided at the same point",
    "parting": "the turn where a failure diverged from a success",
    "counterfactual": "continued from the same state, it succeeded less often",
}
# Settings that are always shown; others are shown if they were changed.
SHOWN = (
    "learning_rate", "lr_scheduler", "warmup_ratio", "batch_size", "gradient_accumulation_steps", "weight_decay",
    "max_grad_norm", "max_length", "seed", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "loss_type",
    "beta", "clip_low", "clip_high", "kl_coef", "averaging", "group_size", "temperature",
)  # fmt: skip
# Shown elsewhere on the card, or without effect on the result.
HIDDEN = {
    "model", "adapter", "train_file", "eval_file", "task_file", "chat_template", "output_dir", "resume", "overwrite",
    "reset_file", "logging_steps", "save_steps", "save_total_limit", "report_to", "wandb_project",
    "token_budget", "concurrency", "retries", "num_epochs",
    "max_steps", "format", "on_error", "compile", "share", "attention",
}  # fmt: skip


def objective(about: str, lineage: Lineage) -> Iterator[str]:
    """The aim of the training."""
    if about:
        yield plain(about)
    for stage in lineage.stages:
        yield f"**{stage.method}** ({plain(stage.name)}). {stage.aim}"


def pipeline(base: BaseModel, lineage: Lineage) -> str:
    """The stages in order, as a small drawing."""
    lines = [base.shown]
    if lineage.start:
        lines.append(f"│   start adapter: {lineage.start}")
    for number, stage in enumerate(lineage.stages, 1):
        last = stage is lineage.last
        bar = " " if last else "│"
        lines += ["│", f"{'└' if last else '├'}── {number}. {stage.name}: {stage.method}"]
        lines[-1] += " (this model)" if last else ""
        lines += [f"{bar}      {fact}" for fact in _facts(stage)]
    return "\n".join(lines)


def _facts(stage: Stage) -> Iterator[str]:
    if stage.data is not None:
        kept = next((ledger["kept"] for ledger in stage.ledgers if ledger.get("item") == "rows"), None)
        yield f"data: {stage.data.name}" + (f", {plural(kept, 'row')}" if isinstance(kept, int) else "")
    elif stage.settings.get("environment"):
        yield f"environment: {shortened(stage.settings['environment'])}"
    steps, tokens = stage.report.get("step"), stage.report.get("tokens_trained")
    if isinstance(steps, int) and isinstance(tokens, int):
        yield f"{plural(steps, 'step')}, {plural(tokens, 'token')} trained"
    losses = [line["loss"] for line in stage.metrics if isinstance(line.get("loss"), float)]
    if losses:
        yield f"loss {losses[0]:.4g} → {losses[-1]:.4g}"


def data(lineage: Lineage) -> Iterator[str]:
    """What was read, what was kept, and why the rest was dropped."""
    ledgers = [(stage.name, ledger) for stage in lineage.stages for ledger in _ledgers(stage)]
    if ledgers:
        yield "Every record was kept, or dropped for a reason:"
        headings = ["stage", "what", "in", "kept", "dropped"]
        yield table(headings, [[plain(name), *_account(ledger)] for name, ledger in ledgers])
    for stage in lineage.stages:
        if reasons := stage.data.reasons if stage.data is not None else {}:
            rows = [[code(why), plain(count), REASONS.get(why, "")] for why, count in reasons.items()]
            yield f"The pairs of {plain(stage.name)}, by the reason for the rejected side:"
            yield table(["reason", "pairs", "meaning"], rows)
    collections = {str(one.path): one for stage in lineage.stages for one in _collections(stage.data)}
    if collections:
        yield "The episodes that the data comes from:"
        headings = ["episodes", "agent", "environment", "number", "success", "how they ended"]
        yield table(headings, [_collection(one) for one in collections.values()])


def settings(stages: Sequence[Stage]) -> str:
    """Hyper-parameters: one column per stage, one row per setting that matters or was changed."""
    keys = [key for key in SHOWN if any(key in stage.settings for stage in stages)]
    for stage in stages:
        changed = [key for key, value in stage.settings.items() if value != _plain(stage.defaults.get(key))]
        keys += [key for key in changed if key not in keys and key not in HIDDEN]
    rows = [[code(key), *(_value(stage.settings.get(key)) for stage in stages)] for key in keys]
    rows.insert(0, ["steps", *(f"{stage.report.get('step', '–')}" for stage in stages)])
    return table(["setting", *(plain(stage.name) for stage in stages)], rows)


def _ledgers(stage: Stage) -> Iterator[dict[str, Any]]:
    made = stage.data.made.get("ledgers") if stage.data is not None else None
    for ledger in [*(made if isinstance(made, list) else []), *stage.ledgers]:
        if isinstance(ledger, dict) and {"item", "in", "kept", "dropped"} <= ledger.keys():
            yield ledger


def _account(ledger: dict[str, Any]) -> list[str]:
    dropped = ledger["dropped"].items() if isinstance(ledger["dropped"], dict) else []
    reasons = ", ".join(f"{count} {code(reason)}" for reason, count in dropped) or "0"
    return [plain(ledger["item"]), plain(ledger["in"]), plain(ledger["kept"]), reasons]


def _collections(found: Data | None) -> Iterator[Data]:
    if found is None:
        return
    if found.played:
        yield found
    for source in found.sources:
        yield from _collections(source)


def _collection(one: Data) -> list[str]:
    rate = one.played.get("success_rate")
    stops = one.played.get("stops")
    ends = ", ".join(f"{count} {ending(how)}" for how, count in stops.items()) if isinstance(stops, dict) else "–"
    player = one.settings.get("adapter") or one.settings.get("model") or "–"
    path = Path(str(player))
    who = path.parent.name if path.name in ("final", "best") else path.name
    environment = shortened(one.settings.get("environment") or "–")
    success = f"{rate:.1%}" if isinstance(rate, float) else "–"
    return [plain(one.name), plain(who), code(environment), plain(one.played.get("episodes", "–")), success, ends]


def _plain(value: Any) -> Any:
    """A default as it is written in a settings file."""
    return str(value) if isinstance(value, Path) else value


def _value(value: Any) -> str:
    if value is None or value in ([], {}):
        return "–"
    if isinstance(value, list):
        return ", ".join(plain(shortened(one)) for one in value)
    if isinstance(value, dict):
        return code(json.dumps({key: shortened(one) for key, one in value.items()}))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return plain(f"{value:g}" if isinstance(value, float) else shortened(value))


# The usage section: runnable code with a prompt from a recorded episode.

MOST_CHARACTERS = 6000
MOST_OF_AN_EPISODE = 2400
IMPORTS = "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
ADAPTER = """\
from peft import PeftModel
{imports}
base = {base}
adapter = {place}

tokenizer = AutoTokenizer.from_pretrained(adapter)
model = AutoModelForCausalLM.from_pretrained(base, dtype="auto", device_map="auto")
model = PeftModel.from_pretrained(model, adapter)
"""
WHOLE = """\
{imports}
name = {place}

tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name, dtype="auto", device_map="auto")
"""
ANSWER = """
prompt = tokenizer.apply_chat_template(
    messages,{tools} add_generation_prompt=True, return_tensors="pt", return_dict=True
).to(model.device)
reply = model.generate(
    **prompt,
    {sampling},
    eos_token_id=tokenizer.convert_tokens_to_ids({end}),
    pad_token_id={pad},
)
print(tokenizer.decode(reply[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))
"""


def usage(subject: Subject, base: BaseModel, repo: str | None) -> Iterator[str]:
    """The paragraphs: transformers and peft first, then other ways to serve the model."""
    yield fenced(program(subject, base, repo), "python")
    place = repo or "path/to/this/folder"
    if subject.is_adapter and base.hub_id:
        rank = subject.lineage.last.settings.get("lora_r", 16)
        yield "With vLLM, or merged into the base model for other engines:"
        yield fenced(
            f"vllm serve {base.hub_id} --enable-lora --max-lora-rank {_rank(rank)} --lora-modules agent={place}\n"
            f"bough merge path/to/this/folder -o merged",
            "sh",
        )
    episode = example(subject)
    if episode is not None and episode.success:
        yield "An episode that it solved:"
        yield fenced(transcript(episode))


def program(subject: Subject, base: BaseModel, repo: str | None) -> str:
    """The code block."""
    template = load_template(str(subject.weights))
    place = json.dumps(repo) if repo else '"."  # the folder of this file'
    name = json.dumps(base.hub_id) if base.hub_id else f'"path/to/base"  # {base.name}'
    head = (ADAPTER if subject.is_adapter else WHOLE).format(imports=IMPORTS, base=name, place=place)
    messages, tools = _conversation(subject, template)
    pad = template.tokenizer.pad_token_id
    answer = ANSWER.format(
        tools=" tools=tools," if tools else "",
        sampling=_sampling(subject).replace(", ", ",\n    "),
        end=json.dumps(template.end_of_turn),
        pad=json.dumps(template.end_of_turn_id if pad is None else pad),
    )
    shown = [f"messages = [\n{''.join(map(_message, messages))}]\n"]
    if tools:
        shown.append(f"tools = {pformat(tools, width=110, sort_dicts=False)}\n")
    return f"{head}\n{''.join(shown)}{answer}".rstrip()


def example(subject: Subject) -> Trajectory | None:
    """An episode that this model played, the first that it solved if there is one."""
    first: Trajectory | None = None
    for file in (file for evaluation in subject.evaluations for file in _own_episodes(evaluation, subject)):
        for record in _records(file):
            if isinstance(record, Trajectory):
                if record.success:
                    return record
                first = first or record
    return first


def transcript(episode: Trajectory) -> str:
    """The messages after the system prompt, cut to a limit."""
    said = [message for message in episode.messages if message.role != "system"]
    text = "\n".join(f"{'>>' if message.role == 'assistant' else '  '} {message.content}" for message in said)
    return text if len(text) <= MOST_OF_AN_EPISODE else f"{text[:MOST_OF_AN_EPISODE]} …"


def _conversation(subject: Subject, template: ChatTemplate) -> tuple[list[Spoken], list[dict[str, Any]] | None]:
    """The first messages of an episode that the model played, or of one that it was trained on."""
    episode: Sample | None = example(subject)
    files = (file for stage in reversed(subject.lineage.stages) for file in _files(stage.data))
    episode = episode or next((record for file in files for record in _records(file)), None)
    if isinstance(episode, Group):
        episode = episode.attempts[0]
    if episode is not None:
        messages, tools = template.speak(with_hint(episode.start), list(episode.tools))
        if len(json.dumps([messages, tools])) <= MOST_CHARACTERS:
            return messages, tools
    return [{"role": "user", "content": "An observation of the environment."}], None


def _sampling(subject: Subject) -> str:
    for evaluation in subject.evaluations:
        for model in evaluation.results.models:
            settings = model.settings
            if _is_own(model, evaluation, subject) and "max_new_tokens" in settings:
                tokens, temperature = settings["max_new_tokens"], settings.get("temperature")
                how = f"do_sample=True, temperature={temperature}" if temperature else "do_sample=False"
                return f"max_new_tokens={tokens}, {how}"
    return "max_new_tokens=256, do_sample=False"


def _own_episodes(evaluation: Evaluation, subject: Subject) -> Iterator[Path]:
    for model in evaluation.results.models:
        file = evaluation.folder / "models" / folder_name(model.name) / "trajectories.jsonl"
        if _is_own(model, evaluation, subject) and file.is_file():
            yield file


def _is_own(model: ModelResult, evaluation: Evaluation, subject: Subject) -> bool:
    weights = model_of(model, evaluation)
    return weights is not None and weights.resolve() == subject.weights.resolve()


def _files(data: Data | None) -> Iterator[Path]:
    if data is not None and data.path is not None:
        inside = data.path / "trajectories.jsonl"
        yield inside if inside.is_file() else data.path
        for source in data.sources:
            yield from _files(source)


def _records(file: Path) -> Iterator[Sample]:
    try:
        yield from Reader(file, on_error="skip")
    except InputError:  # a card can do without an example
        return


def _message(message: dict[str, Any]) -> str:
    lines = str(message["content"]).splitlines(keepends=True) or [""]
    more = {key: value for key, value in message.items() if key not in ("role", "content")}
    head = f'"role": {json.dumps(message["role"])},' + "".join(f' "{key}": {value!r},' for key, value in more.items())
    if len(lines) == 1:
        return f'    {{{head} "content": {_literal(lines[0])}}},\n'
    content = "".join(f"            {_literal(line)}\n" for line in lines)
    return f'    {{\n        {head}\n        "content": (\n{content}        ),\n    }},\n'


def _literal(text: str) -> str:
    """A Python string literal, in double quotes unless that needs a backslash."""
    found = repr(text)
    return f'"{found[1:-1]}"' if found[0] == "'" and '"' not in found else found


def _rank(rank: Any) -> int:
    """vLLM accepts certain ranks only."""
    return next((size for size in (8, 16, 32, 64, 128, 256, 320) if isinstance(rank, int) and rank <= size), 512)


# The YAML at the top of a card, with the keys that the Hub defines.


def front_matter(subject: Subject, base: BaseModel, found: Sequence[Measured], title: str, config: CardConfig) -> str:
    """The YAML block between its two lines of dashes."""
    values: dict[str, Any] = {}
    if base.hub_id:
        values["base_model"] = base.hub_id
        values["base_model_relation"] = "adapter" if subject.is_adapter else "finetune"
    values["library_name"] = "peft" if subject.is_adapter else "transformers"
    values["pipeline_tag"] = "text-generation"
    if config.license:
        values["license"] = config.license
    if config.language:
        values["language"] = list(config.language)
    if datasets := all_datasets(subject, config):
        values["datasets"] = datasets
    values["tags"] = _tags(subject, found)
    if results := [_result(group) for group in found if group.own is not None]:
        values["model-index"] = [{"name": _one_line(title), "results": results}]
    return f"---\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=1000)}---"


def all_datasets(subject: Subject, config: CardConfig) -> list[str]:
    """The data sets on the Hub that it was trained on: those that the stages read and those that the user names."""
    read = [stage.data.hub_id for stage in subject.lineage.stages if stage.data is not None]
    return list(dict.fromkeys([*filter(None, read), *config.datasets]))


def _tags(subject: Subject, found: Sequence[Measured]) -> list[str]:
    verbs = [stage.verb for stage in subject.lineage.stages]
    worlds = [str(shortened(group.settings.environment)).partition(":")[0].removesuffix(".py") for group in found]
    adapter = ["lora"] if subject.is_adapter else []
    return list(dict.fromkeys(["bough", "agent", *adapter, *verbs, *map(_one_line, worlds)]))


def _result(group: Measured) -> dict[str, Any]:
    """One entry of the model index: the success rate of this model with its interval."""
    assert group.own is not None
    settings, found = group.settings, group.reports[group.own]
    world = _one_line(shortened(settings.environment))
    interval = found.success.interval
    sure = f" ({settings.level:.0%} interval {interval.low:.3f} to {interval.high:.3f})" if interval else ""
    metrics = [
        ("success_rate", f"success rate{sure}", found.success.mean),
        ("mean_reward", "mean reward", found.reward.mean),
    ]
    dataset: dict[str, Any] = {"type": world, "name": f"{world}, {plural(found.tasks, 'task')}"}
    if settings.split:
        dataset["split"] = _one_line(settings.split)
    return {
        "task": {"type": "text-generation", "name": "Acting in an environment"},
        "dataset": dataset,
        "metrics": [
            {"type": kind, "name": name, "value": round(value, 4)} for kind, name, value in metrics if value is not None
        ],
    }


def _one_line(text: object) -> str:
    return printable(" ".join(str(text).split()))


# Paths of this machine, removed from published text.


def without_places(text: str, folders: Iterable[Path]) -> str:
    """`text` with the names of this machine's folders replaced by "…"."""
    for folder in sorted({str(folder) for folder in folders}, key=len, reverse=True):
        if len(folder) > 1:
            text = re.sub(rf"(?<![\w./-]){re.escape(folder)}(?![\w.-])", "…", text)
    return text
