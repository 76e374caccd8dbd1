"""`bough sweep`."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from bough.config.sweep import SweepConfig
from bough.plural import plural
from bough.sweeps.sweep import Sweep
from bough.sweeps.table import cells, header
from bough.terminal import console


def sweep(config: SweepConfig) -> int:
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
                    {"stage": stamped.stage.folder, "shared_with": source.name if source else None}
                    for stamped, source in shown
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
        for stamped, source in shown:
            note = f"  shared with {source.label}" if source else ""
            out.print(f"    {stamped.stage.folder}{note}", markup=False)
    return 0
