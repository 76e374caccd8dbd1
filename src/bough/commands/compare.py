"""`bough compare`: compares result files of `bough eval --environment`."""

from __future__ import annotations

from bough.config.evaluation import CompareConfig
from bough.evaluation.results import Results
from bough.evaluation.side_by_side import side_by_side
from bough.terminal import console
from bough.terminal.evaluation import show


def compare(config: CompareConfig) -> int:
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
