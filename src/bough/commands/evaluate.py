"""`bough.evaluate` and `bough.compare`: how good models are, and whether one is better than another."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from pydantic import Field, model_validator

from bough import event_loop
from bough.commands.collect import announce_episodes
from bough.commands.models import LoadedModel, ModelLike, TrainedModel, model_name
from bough.commands.objects import AgentLike, EnvironmentLike, Facts, Source, StrPath, as_file, is_path, where_to_play
from bough.commands.table import Command, Stage
from bough.config.base import setting
from bough.config.groups import ReportConfig
from bough.config.keywords import make_config, settings_of
from bough.data.base import IN_MEMORY
from bough.errors import InputError, short_path
from bough.evaluation.comparison import compare as compare_models
from bough.evaluation.contest import EvalConfig, StatisticsConfig, contest
from bough.evaluation.gate import Decision, gate
from bough.evaluation.results import FILE_NAME, Results
from bough.evaluation.success import reports
from bough.files import write_json
from bough.ledger import Ledger
from bough.models import resolve
from bough.rollouts.collect import lost_lines
from bough.terminal import console
from bough.terminal.console import ContestProgress, show


class Evaluation:
    """Models in an environment: success with its interval for each, and paired tests between them.

    It prints as the table that `bough eval` shows. `results` has every episode's outcome,
    `reports` the numbers by model, `comparisons` the tests.
    """

    def __init__(self, results: Results, path: Path | None = None) -> None:
        self.results, self.path = results, path
        self.reports: dict[str, Any] = dict(results.reports)
        self.comparisons: list[Any] = list(results.comparisons)

    @property
    def success(self) -> dict[str, float | None]:
        """The success rate of each model, None where no outcome is known."""
        return {name: report["success"]["mean"] for name, report in self.reports.items()}

    def __repr__(self) -> str:
        return table(self.reports, self.comparisons, self.results.level)


class HeldOutMeasures(Facts):
    """A model on held-out records: negative log-likelihood, perplexity and accuracies by name."""


class CompareConfig(ReportConfig):
    """Compares results of `bough eval --environment`, matched by task and attempt."""

    statistics: StatisticsConfig = StatisticsConfig()
    files: list[Path] = setting(
        positional=True, min_length=1, description="result files, or the folders that contain them"
    )
    gate: bool = Field(False, description="exit with 1 unless the last model is significantly better than the first")
    gate_by_type: bool = Field(
        False, description="with --gate: also exit with 1 if the last model is significantly worse on any type of task"
    )
    output: Path | None = setting(None, short="-o", description="also write the report to this JSON file")

    @model_validator(mode="after")
    def _types_are_of_the_gate(self) -> Self:
        if self.gate_by_type and not self.gate:
            raise ValueError("--gate-by-type needs --gate")
        return self


@dataclass(frozen=True, repr=False)
class Compared:
    """Evaluations side by side. It prints as a table; `decision` is the gate's, where it was asked for."""

    reports: dict[str, Any]
    comparisons: list[dict[str, Any]]
    notes: list[str]
    decision: Decision | None
    level: float

    def to_json(self) -> dict[str, Any]:
        decided = self.decision.to_json() if self.decision is not None else None
        return {"reports": self.reports, "comparisons": self.comparisons, "gate": decided}

    def __repr__(self) -> str:
        reason = [self.decision.reason] if self.decision is not None else []
        return "\n".join(
            [table(self.reports, self.comparisons, self.level), *(f"note: {note}" for note in self.notes), *reason]
        )


@settings_of(EvalConfig, "model", "own_agent")
def evaluate(
    models: ModelLike | Sequence[ModelLike],
    environment: EnvironmentLike | None = None,
    *,
    agent: AgentLike | None = None,
    eval_file: Source | None = None,
    output: StrPath | None = None,
    **settings: Any,
) -> Evaluation | HeldOutMeasures:
    """Measure models in an environment, or one model on held-out records.

    `models` is one or a list of names, folders, trained or loaded models, "expert" or
    "random". With `environment`, a name or a class, or `agent`, your own function, every model
    plays the same tasks with
    the same seeds, and the result is an `Evaluation`. With `eval_file`, a path or records in
    memory, perplexity and accuracies are measured, and the result is `HeldOutMeasures`.

    With `output` the episodes and results are kept in that folder (a JSON file for held-out
    records), and an evaluation that was stopped resumes there; without it nothing is left
    on disk.
    """
    several = [models] if isinstance(models, str | os.PathLike | LoadedModel) else list(models)
    with TemporaryDirectory(prefix="bough-") as folder, as_file(eval_file) as file:
        # A model that is only in memory is written down.
        folders = [
            str(model.save(Path(folder) / f"loaded-{n}")) if isinstance(model, LoadedModel) else model_name(model)
            for n, model in enumerate(several)
        ]
        target = Path(output) if output is not None else None
        if (environment is not None or agent is not None) and target is None:
            target = Path(folder) / "evaluation"
        config = make_config(
            EvalConfig, "evaluate", settings,
            model=folders, **where_to_play(environment, agent),
            eval_file=file, output=target,
        )  # fmt: skip
        if not config.environment.name:
            from bough.evaluation.held_out import measure

            found = measure(config)
            if config.output is not None:
                named = short_path(eval_file) if is_path(eval_file) else IN_MEMORY
                write_json(config.output, {"model": _labels(several)[0], "eval_file": named} | found)
            return HeldOutMeasures(found)
        results = _play(config, dict(zip(folders, _labels(several), strict=True)))
    return Evaluation(results, None if output is None else Path(output))


def _play(config: EvalConfig, labels: dict[str, str] | None = None) -> Results:
    with ContestProgress() as progress:
        return event_loop.run(contest(config, progress, labels))


def _labels(models: Sequence[ModelLike]) -> list[str]:
    """What the table calls the models: a temporary folder's name would say nothing."""
    plain = [
        model.name if isinstance(model, LoadedModel | TrainedModel) else resolve.model_name(model_name(model))
        for model in models
    ]
    return [
        f"{name} ({plain[:number].count(name) + 1})" if plain.count(name) > 1 else name
        for number, name in enumerate(plain)
    ]


@settings_of(CompareConfig, "files")
def compare(*evaluations: Evaluation | StrPath, output: StrPath | None = None, **settings: Any) -> Compared:
    """Put evaluations side by side, matched by task and attempt.

    `evaluations` are results of `bough.evaluate`, or the files or folders they were written to.
    """
    files = [
        Path(f"evaluation {n}") if isinstance(one, Evaluation) else Path(one) for n, one in enumerate(evaluations, 1)
    ]
    target = None if output is None else Path(output)
    config = make_config(CompareConfig, "compare", settings, files=files, output=target)
    both = zip(config.files, evaluations, strict=True)
    return _compare(config, {file: one.results for file, one in both if isinstance(one, Evaluation)})


def _compare(config: CompareConfig, given: Mapping[Path, Results]) -> Compared:
    """Compares the models of all files. Results of other tasks or fewer than two models are an InputError."""
    files = {path: given.get(path) or Results.read(path) for path in config.files}
    (first, reference), *others = files.items()
    problems = [
        f"{what} is {getattr(reference, what)!r} in {first} and {getattr(results, what)!r} in {path}"
        for path, results in others
        for what in ("environment", "options", "split", "seed")
        if getattr(results, what) != getattr(reference, what)
    ]
    if problems:
        raise InputError("these results cannot be compared:", problems)
    # A name that occurs in several files gets the file added.
    names = [model.name for results in files.values() for model in results.models]
    models = [
        model.model_copy(update={"name": f"{model.name} ({path})"}) if names.count(model.name) > 1 else model
        for path, results in files.items()
        for model in results.models
    ]
    if len(models) < 2:
        raise InputError(f"{first} contains one model; a comparison needs two: give a second file")
    early, level = any(results.stop_width is not None for results in files.values()), config.statistics.level
    compared = compare_models(models, against=config.statistics.against, level=level, sequential=early)
    decision = None
    if config.gate:
        alpha = round(1.0 - level, 12)
        decision = gate(models[0], models[-1], alpha=alpha, sequential=early, by_type=config.gate_by_type)
    # Settings may differ between the models, but the reader should know.
    keys = sorted({key for model in models for key in model.settings} - {"adapter"})
    values = {key: [model.settings.get(key) for model in models] for key in keys}
    notes = [f"{key} differs: {some}" for key, some in values.items() if any(one != some[0] for one in some)]
    found = Compared(reports(models, level, early), [one.to_json() for one in compared], notes, decision, level)
    if config.output is not None:
        write_json(config.output, found.to_json())
    return found


def table(reports: dict[str, Any], comparisons: list[Any], level: float) -> str:
    """An evaluation as text."""
    out = console.out()
    with out.capture() as captured:
        show(reports, comparisons, level, out)
    return captured.get().rstrip()


# `bough eval`: models in an environment, or a model on a held-out file.


def _episodes(config: EvalConfig) -> int:
    announce_episodes(config)
    results = _play(config)
    for model in results.models:
        for line in lost_lines({f"{model.name}, {one.task}#{one.attempt}": one.why for one in model.lost}):
            console.err().print(console.printable(line), style="red", markup=False)
    assert config.output is not None
    file = config.output / FILE_NAME
    if config.as_json:
        console.print_json({"results": str(file), "reports": results.reports, "comparisons": results.comparisons})
        return 0
    show(results.reports, results.comparisons, results.level)
    console.out().print(f"\nresults in {file}", markup=False)
    return 0


def evaluate_command(config: EvalConfig) -> int:
    if config.environment.name:
        return _episodes(config)
    assert config.held_out.file is not None
    to = f"; the report goes to {config.output}" if config.output else ""
    console.announce(f"measuring {config.agent.model[0]} on {config.held_out.file}{to}")

    from bough.evaluation.held_out import measure

    found = measure(config)
    report = {"model": resolve.model_name(config.agent.model[0]), "eval_file": short_path(config.held_out.file)} | found
    if config.as_json:
        console.print_json(report)
    else:
        shown = Facts(found | {"calls": str(Ledger.from_json(found["calls"]))})
        console.out().print(repr(shown), markup=False)
    if config.output:
        write_json(config.output, report)
    return 0


# `bough compare`: compares result files of `bough eval --environment`.


def compare_command(config: CompareConfig) -> int:
    found = _compare(config, {})
    if config.as_json:
        console.print_json(found.to_json() | {"notes": found.notes})
    else:
        show(found.reports, found.comparisons, found.level)
        for note in found.notes:
            console.out().print(console.printable(f"note: {note}"), style="yellow", markup=False)
        if found.decision is not None:
            console.out().print(console.printable(f"\n{found.decision.reason}"), style="bold", markup=False)
    return 0 if found.decision is None or found.decision.promote else 1


COMMANDS = {
    "eval": Command(
        EvalConfig,
        evaluate_command,
        "  bough eval --model smollm2 --model runs/dpo/final --environment household --output runs/eval\n"
        "  bough eval --model runs/sft/final --eval-file held-out.jsonl",
        stage=Stage(None, "evaluation", "results.json", "output"),
        essential=(
            *("model", "adapter", "engine", "base_url", "chat_template", "environment", "options", "own_agent"),
            *("split", "task_file", "tasks", "attempts", "seed", "output", "overwrite", "as_json"),
            *("temperature", "max_new_tokens", "max_turns", "concurrency", "stop_width", "level", "against"),
            *("eval_file", "max_length", "cluster", "workers"),
        ),
    ),
    "compare": Command(
        CompareConfig,
        compare_command,
        "  bough compare runs/eval-sft/results.json runs/eval-dpo/results.json\n"
        "  bough compare runs/eval-sft runs/eval-dpo --gate",
    ),
}
