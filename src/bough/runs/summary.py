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
    seen: list[tuple[str, Results]] = []
    held: list[tuple[str, Results]] = []  # those of the model in use last
    for stage, record, results in _evaluations(folder, recipe):
        rows.append(_with_comparison(_row(stage, results), held, results))
        seen.append((stage, results))
        onward = record.goes_on_with
        of_it = [one for one in seen if _played(one[1]).endswith(onward)] if onward else seen[-1:]
        held = [one for one in held if one not in of_it] + of_it or seen[:1]
    corrected = iter(holm([row.compared.success.p for row in rows if row.compared]))
    return [
        replace(row, compared=replace(row.compared, adjusted_p=next(corrected))) if row.compared else row
        for row in rows
    ]


def _played(results: Results) -> str:
    """The model that was evaluated, without the digest that a folder outside the working directory has."""
    return results.models[-1].name.partition("@")[0]


def _with_comparison(row: SummaryRow, held: list[tuple[str, Results]], results: Results) -> SummaryRow:
    """The row with the comparison to the newest evaluation of the same tasks: a run may have several sets of them."""
    for before, old in reversed(held):
        if (compared := _compared(old, results)) is not None:
            return replace(row, before=before, compared=compared)
    return replace(row, before=held[-1][0]) if held else row


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
