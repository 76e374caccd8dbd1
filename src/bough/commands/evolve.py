"""`bough evolve`."""

from __future__ import annotations

from bough.evolution.evolve import evolve as run
from bough.evolution.settings import EvolveConfig
from bough.plural import plural
from bough.terminal import console
from bough.terminal.members import MembersProgress, fitness_text, members_table, settings_text


def evolve(config: EvolveConfig) -> int:
    with MembersProgress(None if config.population.halving else config.population.generations) as progress:
        found = run(config, notify=console.announce, watch=progress)
    if config.as_json:
        console.print_json({**found.report, "folder": str(found.folder), "weights": str(found.weights)})
        return 0
    out, report = console.out(), found.report
    last = [line for line in found.lineage if line["generation"] == report["generations"] - 1]
    console.print_table(out, members_table(last))
    winner, metric = report["winner"], report["metric"]
    out.print(f"\nwinner {winner['name']}: {settings_text(winner)}", markup=False)
    out.print(f"{metric} {fitness_text(report['selected'])} when it was selected", markup=False)
    kept = f"{metric} {fitness_text(report['untouched'])} on data that no member was selected on"
    shrinkage = report["shrinkage"]
    out.print(kept if shrinkage is None else f"{kept}: shrinkage {shrinkage:.3g}", markup=False)
    empty = report.get("empty_updates", 0)
    note = f" and {empty:,} that taught nothing" if empty else ""
    out.print(
        f"{plural(report['updates'], 'update')}{note}, {plural(report['tokens_computed'], 'token')} computed",
        markup=False,
    )
    out.print(f"weights in {found.weights}", markup=False)
    return 0
