"""`bough evolve`."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from bough.evolution.evolve import evolve as run
from bough.evolution.settings import EvolveConfig
from bough.terminal import console


def evolve(config: EvolveConfig) -> int:
    found = run(config, notify=console.announce)
    if config.as_json:
        console.print_json({**found.report, "folder": str(found.folder), "weights": str(found.weights)})
        return 0
    _print_members([line for line in found.lineage if line["generation"] == found.report["generations"] - 1])
    out, report = console.out(), found.report
    winner, metric = report["winner"], report["metric"]
    out.print(f"\nwinner {winner['name']}: {_settings(winner)}", markup=False)
    out.print(f"{metric} {_number(report['selected'])} when it was selected", markup=False)
    kept = f"{metric} {_number(report['untouched'])} on what no member was selected on"
    shrinkage = report["shrinkage"]
    out.print(kept if shrinkage is None else f"{kept}: shrinkage {shrinkage:.3g}", markup=False)
    out.print(f"{report['updates']:,} updates, {report['tokens_computed']:,} tokens computed", markup=False)
    out.print(f"weights in {found.weights}", markup=False)
    return 0


def _print_members(lines: list[dict[str, Any]]) -> None:
    """The last generation, fittest first."""
    table = Table("member", "fitness", "loss", "updates", "parent", "mutation", "settings", box=None, pad_edge=False)
    for line in lines:
        loss = "" if line["loss"] is None else f"{line['loss']:.4g}"
        mutation = line["mutation"] or {}
        changed = str(mutation.get("setting") or mutation.get("other_parent") or "")
        cells = [
            *(line["name"], _number(line), loss, str(line["step"]), line["parent"] or ""),
            *(" ".join(filter(None, [mutation.get("kind", ""), changed])), _settings(line)),
        ]
        table.add_row(*(escape(console.printable(cell)) for cell in cells))
    console.print_table(console.out(), table)


def _number(score: dict[str, Any]) -> str:
    if score["fitness"] is None:
        return "unknown"
    low, high = score["interval"] or (None, None)
    between = "" if low is None or high is None else f" ({low:.3g} to {high:.3g})"
    return f"{score['fitness']:.3g}{between}"


def _settings(member: dict[str, Any]) -> str:
    values = {**member["settings"], "lora_r": member["rank"]}
    shown = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in values.items()}
    return ", ".join(f"{name}={value}" for name, value in shown.items())
