"""`bough eval --eval-file`: the likelihood of held-out data."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from bough.config.evaluation import EvalConfig
from bough.disk import write_json
from bough.errors import short_path
from bough.evaluation.held_out import measure
from bough.ledger import Ledger
from bough.models.names import model_name
from bough.terminal import console


def held_out(config: EvalConfig) -> int:
    found = measure(config)
    assert config.held_out.file is not None
    report = {"model": model_name(config.agent.model[0]), "eval_file": short_path(config.held_out.file)} | found
    if config.as_json:
        console.print_json(report)
    else:
        _print(found)
    if config.output:
        write_json(config.output, report)
    return 0


def _print(found: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("calls", str(Ledger.from_json(found["calls"])))
    for name, value in found.items():
        if isinstance(value, int | float):
            table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else f"{value:.4g}")
    console.out().print(table)
