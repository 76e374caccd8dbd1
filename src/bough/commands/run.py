"""`bough run`, `bough runs list` and `bough runs show`."""

from __future__ import annotations

import shutil
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from bough.config.run import RunConfig, RunsListConfig, RunsShowConfig
from bough.config.yaml_file import write_value
from bough.evaluation.comparison import Comparison
from bough.runs.listing import command_of, command_run
from bough.runs.listing import list_runs as runs_in
from bough.runs.numbers import numbers_of
from bough.runs.recipe import FILE_NAME, Recipe, plan, read_recipe
from bough.runs.record import StageRecord
from bough.runs.run import Run
from bough.runs.settings_file import NAME, read_settings
from bough.runs.summary import SummaryRow, summary
from bough.terminal import console


def run(config: RunConfig) -> int:
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
    console.out().print(f"\nThe run is in {folder}. To view it in a browser:\n{_bough()} view {folder}", markup=False)
    return 0


def _bough() -> str:
    """How this program was started, where `bough` is not in PATH: the virtual environment may not be active."""
    if shutil.which("bough"):
        return "bough"
    return "python -m bough" if Path(sys.argv[0]).name == "__main__.py" else sys.argv[0]


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
    records = _records(config.run, recipe)
    out = console.out()
    out.print(
        f"{recipe.name}: {recipe.about or 'no description'}\nmodel {recipe.model}, seed {recipe.seed}", markup=False
    )
    table = Table("stage", "state", "minutes", "inputs", "outputs", "note", box=None, pad_edge=False)
    for folder, record in records:
        if record is None:
            table.add_row(folder, "not started", "", "", "", "")
            continue
        state = "done" if record.finished else "unfinished"
        table.add_row(
            folder, state, f"{record.seconds / 60:.1f}", _facts(record.inputs), _facts(record.outputs), record.note
        )
    console.print_table(out, table)
    console.print_table(out, _success_table(config.run, recipe))
    return 0


def _show_command(config: RunsShowConfig, command: str) -> int:
    """The folder of a single command: its progress and its settings."""
    run, file = command_run(config.run, command), config.run / NAME
    settings = read_settings(file)[1] if file.is_file() else {}
    if config.as_json:
        numbers = numbers_of(config.run)
        console.print_json(run.to_json() | {"run": str(config.run), "settings": settings, "numbers": numbers})
        return 0
    out = console.out()
    out.print(", ".join(filter(None, [f"{run.name}: bough {run.made_by}", run.progress, run.result])), markup=False)
    for key, value in settings.items():
        out.print(console.printable(f"    {key}: {write_value(value)}"), markup=False)
    return 0


def _run_json(folder: Path, recipe: Recipe) -> dict[str, Any]:
    stages = [
        {"stage": stage, "record": asdict(record) if record is not None else None}
        for stage, record in _records(folder, recipe)
    ]
    about = {"run": str(folder), "recipe": recipe.model_dump(mode="json"), "stages": stages}
    return about | {"evaluations": [_row_json(row) for row in summary(folder, recipe)]}


def _row_json(row: SummaryRow) -> dict[str, Any]:
    return asdict(replace(row, compared=None)) | {"compared": row.compared.to_json() if row.compared else None}


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
