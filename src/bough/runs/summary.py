"""The evaluations of a run in order: success with its interval, and the difference from the model before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bough.errors import InputError
from bough.evaluation.comparison import Comparison, compare
from bough.evaluation.paired import holm
from bough.evaluation.results import Results
from bough.evaluation.success import report
from bough.runs.recipe import Recipe, plan
from bough.runs.record import StageRecord


@dataclass(frozen=True)
class SummaryRow:
    """An evaluation of a run. `compared` is the comparison with the model that the run had continued with, if any."""

    stage: str
    success: float | None
    low: float
    high: float
    episodes: int
    lost: int = 0
    before: str = ""
    compared: Comparison | None = None


def summary(folder: Path, recipe: Recipe) -> list[SummaryRow]:
    """All finished evaluations in order; p-values are corrected for the number of comparisons (Holm)."""
    rows: list[SummaryRow] = []
    held: tuple[str, Results] | None = None
    seen: list[tuple[str, Results]] = []
    for stage, record, results in _evaluations(folder, recipe):
        row = _row(stage, results)
        if held is not None:
            row = replace(row, before=held[0], compared=_compared(held[1], results))
        rows.append(row)
        seen.append((stage, results))
        onward = record.goes_on_with
        of_it = (one for one in reversed(seen) if onward is None or one[1].models[-1].name.endswith(onward))
        held = next(of_it, held or seen[0])
    corrected = iter(holm([row.compared.success.p for row in rows if row.compared]))
    return [
        replace(row, compared=replace(row.compared, adjusted_p=next(corrected))) if row.compared else row
        for row in rows
    ]


def _evaluations(folder: Path, recipe: Recipe) -> Iterator[tuple[str, StageRecord, Results]]:
    for stage in plan(recipe):
        record = StageRecord.read(folder / stage.folder)
        if record is None or not record.finished or stage.verb != "eval":
            continue
        try:
            yield stage.folder, record, Results.read(folder / stage.folder)
        except InputError:  # `bough eval --eval-file` writes another kind of file
            continue


def _row(stage: str, results: Results) -> SummaryRow:
    model, early = results.models[-1], results.stop_width is not None
    found = report(model.outcomes, lost=model.lost, level=0.95, sequential=early).success
    if found is None or found.interval is None:
        return SummaryRow(stage, None, 0.0, 1.0, len(model.outcomes), len(model.lost))
    return SummaryRow(stage, found.mean, found.interval.low, found.interval.high, len(model.outcomes), len(model.lost))


def _compared(before: Results, after: Results) -> Comparison | None:
    early = before.stop_width is not None or after.stop_width is not None
    try:
        return compare([before.models[-1], after.models[-1]], sequential=early)[0]
    except InputError:  # different tasks cannot be compared
        return None
