"""`bough run`, `bough runs list` and `bough runs show`."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from bough.config.run import RunConfig, RunsListConfig, RunsShowConfig
from bough.errors import InputError
from bough.evaluation.comparison import Comparison
from bough.runs.recipe import FILE_NAME, Recipe, find_recipe, load_recipe, plan, read_recipe
from bough.runs.record import StageRecord
from bough.runs.run import Run
from bough.runs.summary import summary
from bough.terminal import console
from bough.tracking.trackers import Name


def run(config: RunConfig) -> int:
    recipe = load_recipe(find_recipe(config.recipe), config.set)
    folder = config.output_dir or Path("runs") / recipe.name
    playing = Run(recipe, folder, report_to=_trackers(config))
    if config.dry_run:
        return _show_plan(playing)
    err = console.err()
    playing.play(lambda line: err.print(f"▸ {line}", style="bold", markup=False))
    console.print_table(console.out(), _success_table(folder, recipe))
    bough = "bough" if shutil.which("bough") else sys.argv[0]  # the program may lie in an environment that is not on
    console.out().print(f"\nEverything is in {folder}. Look at it in a browser:\n{bough} view {folder}", markup=False)
    return 0


def _trackers(config: RunConfig) -> list[Name]:
    if config.report_to is None:
        return ["mlflow"] if find_spec("mlflow") else []
    return [name for name in config.report_to if name != "none"]


def list_runs(config: RunsListConfig) -> int:
    if not config.folder.is_dir():
        raise InputError(f"{config.folder}: there is no such folder")
    table = Table("run", "recipe", "stages", "last", box=None, pad_edge=False)
    for file in sorted(config.folder.glob(f"*/{FILE_NAME}")):
        try:
            recipe = read_recipe(file.parent)
            records = _records(file.parent, recipe)
        except InputError as error:
            table.add_row(file.parent.name, escape(console.printable(str(error))), "", "")
            continue
        done = [record for _, record in records if record and record.finished]
        table.add_row(file.parent.name, recipe.name, f"{len(done)} of {len(records)}", done[-1].name if done else "")
    console.out().print(table if table.row_count else f"no runs in {config.folder}")
    return 0


def show_run(config: RunsShowConfig) -> int:
    recipe = read_recipe(config.run)
    out = console.out()
    out.print(
        f"{recipe.name}: {recipe.about or 'no description'}\nmodel {recipe.model}, seed {recipe.seed}", markup=False
    )
    table = Table("stage", "state", "minutes", "made of", "made", "note", box=None, pad_edge=False)
    for folder, record in _records(config.run, recipe):
        if record is None:
            table.add_row(folder, "to come", "", "", "", "")
            continue
        state = "done" if record.finished else "cut short"
        table.add_row(
            folder, state, f"{record.seconds / 60:.1f}", _facts(record.inputs), _facts(record.outputs), record.note
        )
    console.print_table(out, table)
    console.print_table(out, _success_table(config.run, recipe))
    return 0


def _show_plan(playing: Run) -> int:
    out = console.out()
    for stage, settings in playing.settings():
        out.print(f"{stage.folder}: bough {stage.verb}", style="bold", markup=False)
        for key, value in settings.items():
            out.print(f"    {key}: {value}", markup=False)
    return 0


def _success_table(folder: Path, recipe: Recipe) -> Table:
    """Success by evaluation, and what each stage between them brought."""
    table = Table("evaluation", "success", "95% interval", "episodes", "against", "paired", box=None, pad_edge=False)
    for row in summary(folder, recipe):
        rate = "unknown" if row.success is None else f"{row.success:.1%}"
        interval = "" if row.success is None else f"{row.low:.1%} – {row.high:.1%}"
        episodes = f"{row.episodes}, {row.lost} lost" if row.lost else str(row.episodes)
        table.add_row(row.stage, rate, interval, episodes, row.before, _paired(row.compared) if row.compared else "")
    return table if table.row_count else Table(box=None, show_header=False)


def _paired(found: Comparison) -> str:
    """The difference task by task; its p-value is corrected for the number of rows."""
    low_high = ""
    if found.success.interval is not None:
        low_high = f" ({100 * found.success.interval.low:+.1f} to {100 * found.success.interval.high:+.1f})"
    verdict = f"p = {found.adjusted_p:.2g}" if found.significant else f"not significant, p = {found.adjusted_p:.2g}"
    return f"{100 * found.success.mean:+.1f} points{low_high}, {verdict}"


def _records(folder: Path, recipe: Recipe) -> list[tuple[str, StageRecord | None]]:
    return [(stage.folder, StageRecord.read(folder / stage.folder)) for stage in plan(recipe)]


def _facts(values: dict[str, str]) -> str:
    return ", ".join(f"{key} {Path(value).name[:8]}" for key, value in values.items())
