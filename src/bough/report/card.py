"""A model card: the README of trained weights, written from the files of their run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from pprint import pformat
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from bough.chat.template import ChatTemplate, Spoken, load_template, with_hint
from bough.config.base import setting
from bough.config.groups import ReportConfig
from bough.data.reader import Reader
from bough.errors import InputError
from bough.experiments.recipe import read_settings
from bough.files import cache_folder, nearby, refuse_links, write_atomically
from bough.ledger import plural
from bough.report.evaluated import Measured, Subject, find_subject, measured, model_of, section, shortened
from bough.report.lineage import BaseModel, Lineage, Stage, base_model, code, fenced, plain, read_json, table
from bough.terminal.console import printable
from bough.types import Trajectory


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

    run: Path = setting(positional=True, description=RUN)
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
    output: Path | None = setting(
        None, short="-o", description="the file to write (default: README.md in the folder of the weights)"
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
    text = "\n\n".join(parts) + "\n"
    for folder in sorted({str(place) for place in (Path.home(), *places)}, key=len, reverse=True):
        if len(folder) > 1:
            text = re.sub(rf"(?<![\w./-]){re.escape(folder)}(?![\w.-])", "…", text)
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
        raise InputError(f"{made.path} is a folder; --output is the file to write")
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
    yield "## Data"
    yield from data(lineage)
    yield "## Hyper-parameters"
    yield settings(lineage.stages)
    yield "## Evaluation"
    yield from section(found)
    for evaluation in subject.evaluations:
        if evaluation.note:
            yield f"Gate of the run: {plain(evaluation.note)}"
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
    ledgers = []
    for stage in lineage.stages:
        made = stage.data.made.get("ledgers") if stage.data is not None else None
        for ledger in [*(made if isinstance(made, list) else []), *stage.ledgers]:
            if isinstance(ledger, dict) and {"item", "in", "kept", "dropped"} <= ledger.keys():
                dropped = ledger["dropped"].items() if isinstance(ledger["dropped"], dict) else []
                why = ", ".join(f"{count} {code(reason)}" for reason, count in dropped) or "0"
                ledgers.append([plain(stage.name), *(plain(ledger[key]) for key in ("item", "in", "kept")), why])
    if ledgers:
        yield "Every record was kept, or dropped for a reason:"
        yield table(["stage", "what", "in", "kept", "dropped"], ledgers)
    for stage in lineage.stages:
        if reasons := stage.data.reasons if stage.data is not None else {}:
            rows = [[code(why), plain(count)] for why, count in reasons.items()]
            yield f"The pairs of {plain(stage.name)}, by the reason for the rejected side:"
            yield table(["reason", "pairs"], rows)


def settings(stages: Sequence[Stage]) -> str:
    """Hyper-parameters: one column per stage, one row per setting that matters or was changed."""
    keys = [key for key in SHOWN if any(key in stage.settings for stage in stages)]
    for stage in stages:
        changed = [key for key, value in stage.settings.items() if value != stage.defaults.get(key)]
        keys += [key for key in changed if key not in keys and key not in HIDDEN]
    rows = [[code(key), *(_value(stage.settings.get(key)) for stage in stages)] for key in keys]
    rows.insert(0, ["steps", *(f"{stage.report.get('step', '–')}" for stage in stages)])
    return table(["setting", *(plain(stage.name) for stage in stages)], rows)


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
    for number, group in enumerate(found, 1):
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
                    # The Hub's library joins results that agree in type, split and this.
                    dataset_config=f"evaluation {number}, seed {settings.seed}",
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


# The usage section of a card: runnable code with a prompt from a recorded episode.

MOST_CHARACTERS = 6000
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
        used = subject.lineage.last.settings.get("lora_r", 16)
        # vLLM accepts certain ranks only.
        ranks = (8, 16, 32, 64, 128, 256, 320)
        rank = next((size for size in ranks if isinstance(used, int) and used <= size), 512)
        yield "With vLLM, or merged into the base model for other engines:"
        yield fenced(
            f"vllm serve {base.hub_id} --enable-lora --max-lora-rank {rank} --lora-modules agent={place}\n"
            f"bough merge path/to/this/folder -o merged",
            "sh",
        )


def program(subject: Subject, base: BaseModel, repo: str | None) -> str:
    """The code block."""
    template = load_template(str(subject.weights))
    place = json.dumps(repo) if repo else '"."  # the folder of this file'
    name = json.dumps(base.hub_id) if base.hub_id else f'"path/to/base"  # {_one_line(base.name)}'
    head = (ADAPTER if subject.is_adapter else WHOLE).format(imports=IMPORTS, base=name, place=place)
    messages, tools = _conversation(subject, template)
    pad = template.tokenizer.pad_token_id
    answer = ANSWER.format(
        tools=" tools=tools," if tools else "",
        sampling=_sampling(subject).replace(", ", ",\n    "),
        end=json.dumps(template.end_of_turn),
        pad=json.dumps(template.end_of_turn_id if pad is None else pad),
    )
    shown = f"messages = {pformat(messages, width=110, sort_dicts=False)}\n"
    if tools:
        shown += f"tools = {pformat(tools, width=110, sort_dicts=False)}\n"
    return f"{head}\n{shown}{answer}".rstrip()


def example(subject: Subject) -> Trajectory | None:
    """An episode that this model played, the first that it solved if there is one."""
    first: Trajectory | None = None
    for config in (file for one in subject.evaluations for file in sorted(one.folder.glob("models/*/config.yaml"))):
        settings, file = read_settings(config)[1], config.with_name("trajectories.jsonl")
        weights = nearby(str(settings.get("adapter") or settings.get("model")), config.parent)
        if weights is None or weights.resolve() != subject.weights.resolve() or not file.is_file():
            continue
        for record in Reader(file, on_error="skip"):
            if isinstance(record, Trajectory):
                if record.success:
                    return record
                first = first or record
    return first


def _conversation(subject: Subject, template: ChatTemplate) -> tuple[list[Spoken], list[dict[str, Any]] | None]:
    """The first messages of an episode that the model played, or a placeholder."""
    episode = example(subject)
    if episode is not None:
        messages, tools = template.speak(with_hint(episode.start), list(episode.tools))
        if len(json.dumps([messages, tools])) <= MOST_CHARACTERS:
            return messages, tools
    return [{"role": "user", "content": "An observation of the environment."}], None


def _sampling(subject: Subject) -> str:
    """As in the first evaluation of these weights that names it."""
    for evaluation in subject.evaluations:
        for model in evaluation.results.models:
            weights = model_of(model, evaluation)
            own = weights is not None and weights.resolve() == subject.weights.resolve()
            tokens, temperature = model.settings.get("max_new_tokens"), model.settings.get("temperature")
            if own and isinstance(tokens, int) and isinstance(temperature, int | float | None):
                how = f"do_sample=True, temperature={temperature}" if temperature else "do_sample=False"
                return f"max_new_tokens={tokens}, {how}"
    return "max_new_tokens=256, do_sample=False"
