"""`bough.evaluate` and `bough.compare`: how good models are, and whether one is better than another."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.table import Table

from bough import event_loop
from bough.commands.collect import announce_episodes
from bough.commands.models import LoadedModel, ModelLike, TrainedModel, model_name
from bough.commands.objects import AgentLike, EnvironmentLike, Facts, Source, StrPath, as_file, is_path, where_to_play
from bough.commands.table import Command, Stage
from bough.config.keywords import make_config, settings_of
from bough.data.base import IN_MEMORY
from bough.errors import short_path
from bough.evaluation.contest import EvalConfig, contest
from bough.evaluation.gate import CompareConfig, SideBySide, side_by_side
from bough.evaluation.results import FILE_NAME, Results
from bough.files import write_json
from bough.ledger import Ledger
from bough.models import resolve
from bough.rollouts.collect import lost_lines
from bough.terminal import console
from bough.terminal.tables import ContestProgress, show


class Evaluation:
    """Models in an environment: success with its interval for each, and paired tests between them.

    It prints as the table that `bough eval` shows. `results` has every episode's outcome,
    `reports` the numbers by model, `comparisons` the tests.
    """

    def __init__(self, results: Results, path: Path | None = None) -> None:
        self.results, self.path = results, path

    @property
    def reports(self) -> dict[str, Any]:
        return dict(self.results.reports)

    @property
    def comparisons(self) -> list[Any]:
        return list(self.results.comparisons)

    @property
    def success(self) -> dict[str, float | None]:
        """The success rate of each model, None where no outcome is known."""
        return {name: report["success"]["mean"] for name, report in self.reports.items()}

    def __repr__(self) -> str:
        return table(self.reports, self.comparisons, self.results.level)


class HeldOutMeasures(Facts):
    """A model on held-out records: negative log-likelihood, perplexity and accuracies by name."""


class Compared:
    """Evaluations side by side. It prints as a table; `decision` is the gate's, where it was asked for."""

    def __init__(self, found: SideBySide) -> None:
        self.reports, self.comparisons = found.reports, found.comparisons
        self.notes, self.decision, self.level = found.notes, found.decision, found.level

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
        folders = [_on_disk(model, Path(folder) / f"loaded-{number}") for number, model in enumerate(several)]
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
                about = {
                    "model": _labels(several)[0],
                    "eval_file": short_path(eval_file) if is_path(eval_file) else IN_MEMORY,
                }
                write_json(config.output, about | found)
            return HeldOutMeasures(found)
        results = _play(config, dict(zip(folders, _labels(several), strict=True)))
    return Evaluation(results, None if output is None else Path(output))


def _play(config: EvalConfig, labels: dict[str, str] | None = None) -> Results:
    with ContestProgress() as progress:
        return event_loop.run(contest(config, progress, labels))


def _on_disk(model: ModelLike, folder: Path) -> str:
    """The name that the settings take; a model that is only in memory is written down for it."""
    return str(model.save(folder)) if isinstance(model, LoadedModel) else model_name(model)


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
    config = make_config(
        CompareConfig, "compare", settings, files=files, output=None if output is None else Path(output)
    )
    results = {
        file: one.results if isinstance(one, Evaluation) else Results.read(file)
        for file, one in zip(config.files, evaluations, strict=True)
    }
    found = side_by_side(results, config)
    if config.output is not None:
        found.write(config.output)
    return Compared(found)


def table(reports: dict[str, Any], comparisons: list[Any], level: float) -> str:
    """An evaluation as text."""
    out = console.out()
    with out.capture() as captured:
        show(reports, comparisons, level, out)
    return captured.get().rstrip()


# `bough eval`: models in an environment, or a model on a held-out file.


def evaluate_command(config: EvalConfig) -> int:
    return _episodes(config) if config.environment.name else _held_out(config)


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


def _held_out(config: EvalConfig) -> int:
    assert config.held_out.file is not None
    to = f"; the report goes to {config.output}" if config.output else ""
    console.announce(f"measuring {config.agent.model[0]} on {config.held_out.file}{to}")

    from bough.evaluation.held_out import measure

    found = measure(config)
    report = {"model": resolve.model_name(config.agent.model[0]), "eval_file": short_path(config.held_out.file)} | found
    if config.as_json:
        console.print_json(report)
    else:
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_row("calls", str(Ledger.from_json(found["calls"])))
        for name, value in found.items():
            if isinstance(value, int | float):
                table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else f"{value:.4g}")
        console.out().print(table)
    if config.output:
        write_json(config.output, report)
    return 0


# `bough compare`: compares result files of `bough eval --environment`.


def compare_command(config: CompareConfig) -> int:
    found = side_by_side({path: Results.read(path) for path in config.files}, config)
    if config.as_json:
        console.print_json(found.to_json() | {"notes": found.notes})
    else:
        show(found.reports, found.comparisons, found.level)
        for note in found.notes:
            console.out().print(console.printable(f"note: {note}"), style="yellow", markup=False)
        if found.decision is not None:
            console.out().print(console.printable(f"\n{found.decision.reason}"), style="bold", markup=False)
    if config.output:
        found.write(config.output)
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
