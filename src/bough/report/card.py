"""A model card: the README of trained weights, written from the files of their run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from bough.config.groups import ReportConfig
from bough.errors import InputError
from bough.files import cache_folder, refuse_links, write_atomically
from bough.ledger import plural
from bough.report.evaluated import Measured, Subject, ending, find_subject, gate_notes, measured, section, shortened
from bough.report.lineage import (
    BaseModel,
    Data,
    Lineage,
    Stage,
    base_model,
    code,
    fenced,
    pedigrees,
    plain,
    read_json,
    table,
)
from bough.report.usage import usage
from bough.terminal.console import printable


def _written_as(pattern: str, what: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(what)
        return value

    return AfterValidator(check)


_NAME = r"(?!.*(--|\.\.))[A-Za-z0-9][A-Za-z0-9._-]*"
HubId = Annotated[str, Field(max_length=96), _written_as(f"{_NAME}/{_NAME}", "a name on the Hub is written org/name")]
Language = Annotated[str, _written_as("[a-z]{2,3}", "a language is an ISO 639 code such as en")]
License = Annotated[
    str, _written_as("[a-z0-9][a-z0-9.-]*", "a license is one of the Hub's identifiers: apache-2.0, mit, other")
]
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
    license: License | None = Field(
        None, description="license of the adapter, as a Hub identifier: apache-2.0, mit, other"
    )
    datasets: list[HubId] = Field([], description="datasets on the Hub that the training data came from")
    language: list[Language] = Field([], description="languages as ISO 639 codes: en, de")
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
    # Folders whose names are specific to this machine, unlike /home and /tmp.
    run = subject.run.resolve()
    places = [place for place in (run, *run.parents, Path.cwd(), cache_folder()) if len(place.parts) > 2]
    text = without_places("\n\n".join(parts) + "\n", [Path.home(), *places])
    missing = {
        f"the base model is only known as {code(base.name)}; give its name on the Hub with --base-model org/name": (
            base.hub_id
        ),
        "no licence is stated; give one with --license": config.license,
        "the usage section has no name to load; give it with --repo org/name": config.repo,
        "no evaluation of these weights was found; name results of `bough eval --environment` with --evaluations": (
            any(group.own for group in found)
        ),
    }
    path = config.output or subject.weights / "README.md"
    return Card(text, path, tuple(note for note, known in missing.items() if not known))


def write_card(config: CardConfig) -> Card:
    """Makes the card and writes it; an existing file is replaced only with `overwrite`."""
    made = make_card(config)
    weights = made.path.parent
    if config.output is None:
        refuse_links(*(folder for folder in (weights.parent, weights) if folder != config.run))
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
    methods = " → ".join(stage.verb.upper() for stage in lineage.stages)
    link = f"[{base.hub_id}](https://huggingface.co/{base.hub_id})" if base.hub_id else plain(base.name)
    what = f"A model based on {link}, all weights trained with {methods}."
    if subject.is_adapter:
        what = f"A LoRA adapter for {link}, trained with {methods}. The base model is loaded separately."
    yield f"{what} {base.note}".strip()
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
}
# Settings that are always shown; others are shown if they were changed.
SHOWN = (
    "learning_rate", "lr_scheduler", "warmup_ratio", "batch_size", "weight_decay",
    "max_grad_norm", "max_length", "seed", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "loss_type",
    "beta", "clip_low", "clip_high", "kl_coef", "averaging", "group_size", "temperature",
)  # fmt: skip
# Shown elsewhere on the card, or without effect on the result.
HIDDEN = {
    "model", "adapter", "train_file", "eval_file", "task_file", "chat_template", "output_dir", "resume", "overwrite",
    "logging_steps", "save_steps", "save_total_limit", "report_to", "wandb_project",
    "token_budget", "concurrency", "retries", "num_epochs",
    "max_steps", "format", "on_error", "compile", "share", "attention",
}  # fmt: skip


def objective(about: str, lineage: Lineage) -> Iterator[str]:
    """The aim of the training."""
    if about:
        yield plain(about)
    for stage in lineage.stages:
        method, aim = stage.described
        yield f"**{method}** ({plain(stage.name)}). {aim}"


def pipeline(base: BaseModel, lineage: Lineage) -> str:
    """The stages in order, as a small drawing."""
    lines = [base.shown]
    if lineage.start:
        lines.append(f"│   start adapter: {lineage.start}")
    for number, stage in enumerate(lineage.stages, 1):
        last = stage is lineage.last
        bar = " " if last else "│"
        lines += ["│", f"{'└' if last else '├'}── {number}. {stage.name}: {stage.described[0]}"]
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
    if ledgers := [row for stage in lineage.stages for row in _ledgers(stage)]:
        yield "Every record was kept, or dropped for a reason:"
        yield table(["stage", "what", "in", "kept", "dropped"], ledgers)
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
        changed = [key for key, value in stage.settings.items() if value != stage.defaults.get(key)]
        keys += [key for key in changed if key not in keys and key not in HIDDEN]
    rows = [[code(key), *(_value(stage.settings.get(key)) for stage in stages)] for key in keys]
    rows.insert(0, ["steps", *(f"{stage.report.get('step', '–')}" for stage in stages)])
    return table(["setting", *(plain(stage.name) for stage in stages)], rows)


def _ledgers(stage: Stage) -> Iterator[list[str]]:
    made = stage.data.made.get("ledgers") if stage.data is not None else None
    for ledger in [*(made if isinstance(made, list) else []), *stage.ledgers]:
        if isinstance(ledger, dict) and {"item", "in", "kept", "dropped"} <= ledger.keys():
            dropped = ledger["dropped"].items() if isinstance(ledger["dropped"], dict) else []
            reasons = ", ".join(f"{count} {code(reason)}" for reason, count in dropped) or "0"
            yield [plain(stage.name), *(plain(ledger[key]) for key in ("item", "in", "kept")), reasons]


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


# The YAML at the top of a card, with the keys that the Hub defines.


def front_matter(subject: Subject, base: BaseModel, found: Sequence[Measured], title: str, config: CardConfig) -> str:
    """The YAML block between its two lines of dashes."""
    from huggingface_hub import EvalResult, ModelCardData

    results = []
    for group in found:
        if group.own is None:
            continue
        settings, report = group.settings, group.reports[group.own]
        world, interval = _one_line(shortened(settings.environment)), report["success"]["interval"]
        sure = f" ({settings.level:.0%} interval {interval['low']:.3f} to {interval['high']:.3f})" if interval else ""
        for kind, name in (("success", f"success rate{sure}"), ("reward", "mean reward")):
            if (value := report[kind]["mean"]) is not None:
                results.append(EvalResult(
                    task_type="text-generation", task_name="Acting in an environment",
                    dataset_type=world, dataset_name=f"{world}, {plural(report['tasks'], 'task')}",
                    dataset_split=_one_line(settings.split) if settings.split else None,
                    metric_type={"success": "success_rate", "reward": "mean_reward"}[kind],
                    metric_name=name, metric_value=round(value, 4),
                ))  # fmt: skip
    verbs = [stage.verb for stage in subject.lineage.stages]
    worlds = [str(shortened(group.settings.environment)).partition(":")[0].removesuffix(".py") for group in found]
    tags = ["bough", "agent", *(["lora"] if subject.is_adapter else []), *verbs, *map(_one_line, worlds)]
    relation = "adapter" if subject.is_adapter else "finetune"
    values = ModelCardData(
        base_model=base.hub_id,
        base_model_relation=relation if base.hub_id else None,
        library_name="peft" if subject.is_adapter else "transformers",
        pipeline_tag="text-generation",
        license=config.license,
        language=list(config.language) or None,
        datasets=all_datasets(subject, config) or None,
        tags=list(dict.fromkeys(tags)),
        model_name=_one_line(title) if results else None,
        eval_results=results or None,
    )
    return f"---\n{values.to_yaml()}\n---"


def all_datasets(subject: Subject, config: CardConfig) -> list[str]:
    """The data sets on the Hub that it was trained on: those that the stages read and those that the user names."""
    read = [stage.data.hub_id for stage in subject.lineage.stages if stage.data is not None]
    return list(dict.fromkeys([*filter(None, read), *config.datasets]))


def _one_line(text: object) -> str:
    return printable(" ".join(str(text).split()))


# Paths of this machine, removed from published text.


def without_places(text: str, folders: Iterable[Path]) -> str:
    """`text` with the names of this machine's folders replaced by "…"."""
    for folder in sorted({str(folder) for folder in folders}, key=len, reverse=True):
        if len(folder) > 1:
            text = re.sub(rf"(?<![\w./-]){re.escape(folder)}(?![\w.-])", "…", text)
    return text
