"""`bough.sweep`: a recipe with every combination of some settings and several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import JsonValue
from rich.markup import escape
from rich.table import Table

from bough.commands.objects import StrPath
from bough.commands.table import Command
from bough.config.keywords import make_config, settings_of
from bough.experiments.sweep import Sweep, SweepConfig
from bough.experiments.sweep_table import SweepRow, cells, header, label
from bough.ledger import plural
from bough.terminal import console


class SweepResult:
    """A sweep: its `folder`, a row per combination and evaluation, and why runs `failed`, by their names."""

    def __init__(self, folder: Path, rows: list[SweepRow], failed: dict[str, str]) -> None:
        self.folder, self.rows, self.failed = folder, rows, failed

    def __repr__(self) -> str:
        rows = [
            f"{label(row.values) or 'all'}: {row.evaluation} {row.mean} ({row.interval}), "
            f"{plural(len(row.rates), 'seed')}"
            for row in self.rows
        ]
        failed = [f"{name} failed: {why}" for name, why in self.failed.items()]
        return "\n".join([f"sweep in {self.folder}", *rows, *failed])


@settings_of(SweepConfig)
def sweep(
    recipe: StrPath, vary: Mapping[str, Sequence[JsonValue]], *, output: StrPath | None = None, **settings: Any
) -> SweepResult:
    """Run a recipe for every combination of settings and every seed, and report success across seeds.

    `vary` has the values of each setting: `{"dpo.beta": [0.01, 0.1, 0.5]}`. Stages that several
    runs have in common are computed once; a sweep that was stopped resumes. A run that fails does
    not stop the others: see `failed`. With `jobs` above 1 the environment must be given by name.
    """
    target = None if output is None else Path(output)
    lists = {key: list(values) for key, values in vary.items()}
    config = make_config(SweepConfig, "sweep", settings, recipe=str(recipe), vary=lists, output=target)
    playing = Sweep.configured(config)
    rows = playing.play(console.announce)
    return SweepResult(playing.folder, rows, playing.failed)


# `bough sweep`.


def sweep_command(config: SweepConfig) -> int:
    playing = Sweep.configured(config)
    if config.dry_run:
        return _show_plan(playing, config.as_json)
    rows = playing.play(console.announce)
    if config.as_json:
        content = {"folder": str(playing.folder), "rows": [row.to_json() for row in rows], "failed": playing.failed}
        console.print_json(content)
    else:
        table = Table(*map(escape, header(playing.settings)), box=None, pad_edge=False)
        for row in rows:
            table.add_row(*(escape(console.printable(cell)) for cell in cells(row, playing.settings)))
        console.print_table(console.out(), table)
        written = "results.md, results.csv, results.json and figure.svg"
        console.out().print(f"\n{written} are in {playing.folder}.", markup=False)
    for name, why in playing.failed.items():
        console.err().print(f"{name} failed: {console.printable(why)}", markup=False)
    if playing.failed:
        count = f"{len(playing.failed)} of {plural(len(playing.runs), 'run')} failed"
        console.err().print(f"{count}; the same command runs only what is missing.", markup=False)
    return 1 if playing.failed else 0


def _show_plan(playing: Sweep, as_json: bool) -> int:
    runs = list(playing.plan())
    stages = [source for _, shown in runs for _, source in shown]
    if as_json:
        listed = [
            {
                "run": one.name,
                "values": one.values,
                "seed": one.seed,
                "stages": [
                    {"stage": stage.folder, "shared_with": source.name if source else None} for stage, source in shown
                ],
            }
            for one, shown in runs
        ]
        console.print_json({"folder": str(playing.folder), "runs": listed})
        return 0
    out = console.out()
    computed = sum(source is None for source in stages)
    out.print(
        f"{plural(len(runs), 'run')} in {playing.folder}: {computed} of {plural(len(stages), 'stage')} to compute",
        markup=False,
    )
    for one, shown in runs:
        out.print(one.label, style="bold", markup=False)
        for stage, source in shown:
            note = f"  shared with {source.label}" if source else ""
            out.print(f"    {stage.folder}{note}", markup=False)
    return 0


COMMANDS = {
    "sweep": Command(
        SweepConfig,
        sweep_command,
        "  bough sweep recipe.yaml --vary dpo.beta=0.01,0.1,0.5 --seeds 3\n"
        "  bough sweep recipe.yaml --vary demonstrations.tasks=5,20,100 pairs.kinds=[episode],[parting] --dry-run\n"
        "  bough sweep recipe.yaml --vary model=smollm2,tiny --set sft.max_steps=10 --jobs 2 -o runs/models",
    ),
}
