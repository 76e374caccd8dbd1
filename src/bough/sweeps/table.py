"""The result of a sweep: for each combination and each evaluation, success across seeds; as JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from bough.config.yaml_file import write_value
from bough.evaluation.success import Measure

LEVEL = 0.95
ALL = "all"


@dataclass(frozen=True)
class SweepRow:
    """An evaluation of one combination. `values` is empty for an evaluation that no varied setting affects.

    `rates` are the success rates of the finished runs by the number of their seed; `seeds` is how many
    there should be.
    """

    values: dict[str, JsonValue]
    evaluation: str
    seeds: int
    rates: dict[int, float | None]
    success: Measure
    lost: int = 0

    def to_json(self) -> dict[str, Any]:
        rates = {str(seed): rate for seed, rate in self.rates.items()}
        return vars(self) | {"rates": rates, "success": self.success.to_json()}

    @property
    def interval(self) -> str:
        found = self.success.interval
        return f"{found.low:.1%} – {found.high:.1%}" if found else ""

    @property
    def mean(self) -> str:
        return "unknown" if self.success.mean is None else f"{self.success.mean:.1%}"

    @property
    def by_seed(self) -> str:
        rates = ["?" if rate is None else f"{100 * rate:.1f}" for rate in self.rates.values()]
        missing = self.seeds - len(rates)
        return " ".join([*rates, *([f"({missing} of {self.seeds} missing)"] if missing else [])])

    @property
    def episodes(self) -> str:
        return f"{self.success.episodes}, {self.lost} lost" if self.lost else str(self.success.episodes)


def header(settings: Sequence[str]) -> list[str]:
    return [*settings, "evaluation", "success", f"{LEVEL:.0%} interval", "by seed, %", "episodes"]


def cells(row: SweepRow, settings: Sequence[str]) -> list[str]:
    """A row as text, for the terminal and for Markdown."""
    values = [write_value(row.values[key]) if key in row.values else ALL for key in settings]
    return [*values, row.evaluation, row.mean, row.interval, row.by_seed, row.episodes]


def markdown(rows: Sequence[SweepRow], settings: Sequence[str], failed: Mapping[str, str]) -> str:
    """The table as Markdown, and how to read it."""
    lines = [header(settings), ["---"] * len(header(settings)), *(cells(row, settings) for row in rows)]
    text = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    methods = {row.success.interval.method for row in rows if row.success.interval}
    text += ["", f"Success is the mean over seeds. {LEVEL:.0%} intervals: {' / '.join(sorted(methods)) or 'none'}."]
    if failed:
        text += ["", "Failed runs:", "", *(f"- {name}: {why.splitlines()[0]}" for name, why in failed.items())]
    return "\n".join([*text, ""])


def as_csv(rows: Sequence[SweepRow], settings: Sequence[str]) -> str:
    """The table as CSV, with one line per combination and evaluation; rates are fractions."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*settings, "evaluation", "success", "low", "high", "rates", "seeds", "episodes", "lost"])
    for row in rows:
        values = [write_value(row.values[key]) if key in row.values else "" for key in settings]
        interval = row.success.interval
        ends = (interval.low, interval.high) if interval else ("", "")
        rates = " ".join("" if rate is None else f"{rate:.6g}" for rate in row.rates.values())
        mean = "" if row.success.mean is None else row.success.mean
        writer.writerow([*values, row.evaluation, mean, *ends, rates, len(row.rates), row.success.episodes, row.lost])
    return file.getvalue()
