"""`bough.run`: the stages of a recipe, from a model and an environment to a better agent."""

from __future__ import annotations

import shutil
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from bough.commands.objects import StrPath
from bough.commands.table import Command
from bough.config.base import setting
from bough.config.groups import ReportConfig
from bough.config.keywords import make_config, settings_of
from bough.config.yaml_file import write_value
from bough.evaluation.comparison import Comparison
from bough.experiments.listing import command_of, command_run
from bough.experiments.listing import list_runs as runs_in
from bough.experiments.recipe import FILE_NAME, NAME, Recipe, plan, read_recipe, read_settings
from bough.experiments.record import StageRecord, numbers_of
from bough.experiments.run import Run, RunConfig, SummaryRow, summary
from bough.ledger import plural
from bough.terminal import console


class RunsListConfig(ReportConfig):
    """Lists the runs in a folder and the progress of each: recipes and single commands."""

    folder: Path = setting(Path("runs"), positional=True, description="the folder of the runs")


class RunsShowConfig(ReportConfig):
    """Shows one run: its stages, their inputs and outputs, its results."""

    run: Path = setting(positional=True, description="the run folder")


class RecipeRun:
    """A finished run of a recipe: its `folder`, and a row for each of its evaluations."""

    def __init__(self, name: str, folder: Path, evaluations: list[SummaryRow]) -> None:
        self.name, self.folder, self.evaluations = name, folder, evaluations

    def __repr__(self) -> str:
        rows = [
            f"{row.stage}: success {row.success:.1%} ({row.low:.1%} to {row.high:.1%}), "
            f"{plural(row.episodes, 'episode')}"
            if row.success is not None
            else f"{row.stage}: success unknown"
            for row in self.evaluations
        ]
        return "\n".join([f"{self.name} in {self.folder}", *rows])


@settings_of(RunConfig)
def run(recipe: StrPath, *, output_dir: StrPath | None = None, **settings: Any) -> RecipeRun:
    """Run the stages of a recipe, a YAML file or the name of a shipped one.

    Stages that have not changed are skipped; a run that was stopped resumes. `output_dir`
    is the run's folder (default: runs/ and the recipe's name).
    """
    target = None if output_dir is None else Path(output_dir)
    config = make_config(RunConfig, "run", settings, recipe=str(recipe), output_dir=target)
    playing = Run.configured(config)
    playing.play(console.announce)
    return RecipeRun(playing.recipe.name, playing.folder, summary(playing.folder, playing.recipe))


# `bough run`, `bough runs list` and `bough runs show`.


def run_command(config: RunConfig) -> int:
    playing = Run.configured(config)
    if config.dry_run:
        return _show_plan(playing, config.as_json)
    folder = playing.folder
    if config.as_json:
        with redirect_stdout(sys.stderr):  # what the stages print is progress here
            playing.play(console.announce)
        console.print_json(_run_json(folder, playing.recipe))
        return 0
    playing.play(console.announce)
    console.print_table(console.out(), _success_table(folder, playing.recipe))
    # Where `bough` is not in PATH, as this program was started: the virtual environment may not be active.
    started = "python -m bough" if Path(sys.argv[0]).name == "__main__.py" else sys.argv[0]
    bough = "bough" if shutil.which("bough") else started
    console.out().print(f"\nThe run is in {folder}. To view it in a browser:\n{bough} view {folder}", markup=False)
    return 0


def list_runs(config: RunsListConfig) -> int:
    found = runs_in(config.folder)
    if config.as_json:
        console.print_json({"folder": str(config.folder), "runs": [one.to_json() for one in found]})
        return 0
    table = Table("run", "made by", "progress", "result", box=None, pad_edge=False)
    for one in found:
        table.add_row(*(escape(console.printable(text)) for text in (one.name, one.made_by, one.progress, one.result)))
    console.print_table(console.out(), table) if found else console.out().print(f"no runs in {config.folder}")
    return 0


def show_run(config: RunsShowConfig) -> int:
    if not (config.run / FILE_NAME).exists() and (command := command_of(config.run)) is not None:
        return _show_command(config, command)
    recipe = read_recipe(config.run)
    if config.as_json:
        console.print_json(_run_json(config.run, recipe))
        return 0
    out = console.out()
    for line in (f"{recipe.name}: {recipe.about or 'no description'}", f"model {recipe.model}, seed {recipe.seed}"):
        out.print(console.printable(line), markup=False)
    table = Table("stage", "state", "minutes", "inputs", "outputs", "note", box=None, pad_edge=False)
    for folder, record in _records(config.run, recipe):
        if record is None:
            table.add_row(folder, "not started", "", "", "", "")
            continue
        state = "done" if record.finished else "unfinished"
        facts = f"{record.seconds / 60:.1f}", _facts(record.inputs), _facts(record.outputs), record.note
        table.add_row(folder, state, *(escape(console.printable(text)) for text in facts))
    console.print_table(out, table)
    console.print_table(out, _success_table(config.run, recipe))
    return 0


def _show_command(config: RunsShowConfig, command: str) -> int:
    """The folder of a single command: its progress and its settings."""
    shown, file = command_run(config.run, command), config.run / NAME
    settings = read_settings(file)[1] if file.is_file() else {}
    if config.as_json:
        numbers = numbers_of(config.run)
        console.print_json(shown.to_json() | {"run": str(config.run), "settings": settings, "numbers": numbers})
        return 0
    out = console.out()
    facts = filter(None, [f"{shown.name}: bough {shown.made_by}", shown.progress, shown.result])
    out.print(console.printable(", ".join(facts)), markup=False)
    for key, value in settings.items():
        out.print(console.printable(f"    {key}: {write_value(value)}"), markup=False)
    return 0


def _run_json(folder: Path, recipe: Recipe) -> dict[str, Any]:
    return {
        "run": str(folder),
        "recipe": recipe.model_dump(mode="json"),
        "stages": [
            {"stage": stage, "record": asdict(record) if record is not None else None}
            for stage, record in _records(folder, recipe)
        ],
        "evaluations": [
            asdict(replace(row, compared=None)) | {"compared": row.compared.to_json() if row.compared else None}
            for row in summary(folder, recipe)
        ],
    }


def _show_plan(playing: Run, as_json: bool) -> int:
    if as_json:
        stages = [{"stage": one.folder, "command": one.verb, "settings": given} for one, given in playing.settings()]
        console.print_json({"run": str(playing.folder), "stages": stages})
        return 0
    out = console.out()
    for stage, settings in playing.settings():
        out.print(f"{stage.folder}: bough {stage.verb}", style="bold", markup=False)
        for key, value in settings.items():
            out.print(f"    {key}: {write_value(value)}", markup=False)
    return 0


def _success_table(folder: Path, recipe: Recipe) -> Table:
    """The success rate of each evaluation, and its difference from the one before."""
    table = Table("evaluation", "success", "95% interval", "episodes", "against", "paired", box=None, pad_edge=False)
    for row in summary(folder, recipe):
        rate = "unknown" if row.success is None else f"{row.success:.1%}"
        interval = "" if row.success is None else f"{row.low:.1%} – {row.high:.1%}"
        episodes = f"{row.episodes}, {row.lost} lost" if row.lost else str(row.episodes)
        table.add_row(row.stage, rate, interval, episodes, row.before, _paired(row.compared) if row.compared else "")
    return table if table.row_count else Table(box=None, show_header=False)


def _paired(found: Comparison) -> str:
    """The paired difference; its p-value is corrected for the number of rows."""
    low_high = ""
    if found.success.interval is not None:
        low_high = f" ({100 * found.success.interval.low:+.1f} to {100 * found.success.interval.high:+.1f})"
    verdict = f"p = {found.adjusted_p:.2g}" if found.significant else f"not significant, p = {found.adjusted_p:.2g}"
    return f"{100 * found.success.mean:+.1f} points{low_high}, {verdict}"


def _records(folder: Path, recipe: Recipe) -> list[tuple[str, StageRecord | None]]:
    return [(stage.folder, StageRecord.read(folder / stage.folder)) for stage in plan(recipe)]


def _facts(values: dict[str, str]) -> str:
    return ", ".join(f"{key} {Path(value).name[:8]}" for key, value in values.items())


COMMANDS = {
    "run": Command(
        RunConfig,
        run_command,
        "  bough run demo\n  bough run recipe.yaml --set model=tiny sft.max_steps=3\n  bough run demo --dry-run",
    ),
    "runs list": Command(RunsListConfig, list_runs, "  bough runs list"),
    "runs show": Command(RunsShowConfig, show_run, "  bough runs show runs/demo"),
}
