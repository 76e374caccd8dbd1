"""The result of a sweep: for each combination and each evaluation, success across seeds; as JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
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


def label(values: Mapping[str, JsonValue]) -> str:
    """The values of the varied settings as text."""
    return ", ".join(f"{key}={write_value(value)}" for key, value in values.items())


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


# The figure of a sweep, as SVG: success over the first varied setting, one series per combination of the others.
# A large dot is the mean over seeds on its interval, small dots are the seeds. Colours have a middle brightness, so
# that they are readable on light and dark pages.

COLOURS = ("#3f9b5f", "#4a86c8", "#c2702e", "#9a6bc4", "#b8566f", "#8a8f2a")
INK, FAINT = "#76808c", "#76808c55"
WIDTH, LEFT, RIGHT, HEIGHT, LEGEND_ROW = 760, 60, 730, 240, 20
# Pixels between series at one value, and between the axis' ends and the outer values.
DODGE, MARGIN = 9, 50
# Values that span this factor are drawn on a logarithmic axis.
LOGARITHMIC = 10


def draw(rows: Sequence[SweepRow]) -> str:
    """The figure of the rows of one evaluation, which all have the same varied settings.

    Values are to scale if they are numbers, else side by side.
    """
    first, *others = rows[0].values
    values: list[Any] = _distinct([row.values[first] for row in rows])
    series = _distinct([{key: row.values[key] for key in others} for row in rows])
    to_scale = len(values) > 1 and all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)
    log = to_scale and min(values) > 0 and max(values) / min(values) >= LOGARITHMIC
    places = [math.log(one) if log else one for one in values] if to_scale else list(range(len(values)))
    low, high = min(places), max(places)
    width = RIGHT - LEFT - 2 * MARGIN
    across = [LEFT + MARGIN + width * ((one - low) / (high - low) if high > low else 0.5) for one in places]
    top = 15 + LEGEND_ROW * (len(series) if others else 0)
    bottom = top + HEIGHT
    parts = []
    for percent in range(0, 101, 20):
        y = bottom - HEIGHT * percent / 100
        parts.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>')
        parts.append(text_at(LEFT - 10, y + 4, f"{percent}%", "end"))
    parts += [text_at(x, bottom + 20, write_value(one), "middle") for x, one in zip(across, values, strict=True)]
    parts.append(text_at((LEFT + RIGHT) / 2, bottom + 44, f"{first}{', logarithmic' if log else ''}", "middle"))
    parts.append(text_at(RIGHT, bottom + 44, rows[0].evaluation, "end"))
    for number, own in enumerate(series):
        colour, shift = COLOURS[number % len(COLOURS)], DODGE * (number - (len(series) - 1) / 2)
        if others:
            y = 12 + LEGEND_ROW * number
            parts.append(f'<circle cx="{LEFT + 6}" cy="{y}" r="5" fill="{colour}"/>')
            parts.append(text_at(LEFT + 18, y + 4, label(own)))
        points = []
        for x, value in zip(across, values, strict=True):
            wanted = {first: value, **own}
            points += [(x + shift, row) for row in rows if all(same(row.values[key], wanted[key]) for key in wanted)]
        parts += _series(sorted(points, key=lambda point: point[0]), bottom, colour, joined=to_scale)
    said = [f"{label(row.values)}: {row.mean}" + (f" ({row.interval})" if row.interval else "") for row in rows]
    about = f"{rows[0].evaluation}: success with {LEVEL:.0%} intervals across seeds: {'; '.join(said)}"
    return document(bottom + 58, about, parts)


def _series(points: Sequence[tuple[float, SweepRow]], bottom: int, colour: str, *, joined: bool) -> list[str]:
    def dot(x: float, rate: float, style: str) -> str:
        return f'<circle cx="{x:.1f}" cy="{bottom - HEIGHT * rate:.1f}" {style}/>'

    def line(x1: float, rate1: float, x2: float, rate2: float, style: str) -> str:
        ends = f'x1="{x1:.1f}" y1="{bottom - HEIGHT * rate1:.1f}" x2="{x2:.1f}" y2="{bottom - HEIGHT * rate2:.1f}"'
        return f'<line {ends} stroke="{colour}" {style}/>'

    known = [(x, row.success.mean, row) for x, row in points if row.success.mean is not None]
    parts = []
    for (x1, one, _), (x2, other, _) in pairwise(known) if joined else ():
        parts.append(line(x1, one, x2, other, 'stroke-opacity="0.6"'))
    for x, mean, row in known:
        if (interval := row.success.interval) is not None:
            style = 'stroke-width="4" stroke-opacity="0.5" stroke-linecap="round"'
            parts.append(line(x, interval.low, x, interval.high, style))
        seeds = [rate for rate in row.rates.values() if rate is not None]
        parts += [dot(x, rate, f'r="2.5" fill="none" stroke="{INK}"') for rate in seeds]
        parts.append(dot(x, mean, f'r="5" fill="{colour}"'))
    return parts


def _distinct(values: Sequence[Any]) -> list[Any]:
    """The different values in their order; lists and mappings are values too."""
    return [value for at, value in enumerate(values) if not any(same(value, one) for one in values[:at])]


def same(one: Any, other: Any) -> bool:
    """Whether two values of a setting are the same: 1 and True are not."""
    return bool(one == other and isinstance(one, bool) == isinstance(other, bool))


def text_at(x: float, y: float, content: str, anchor: str = "start") -> str:
    """A line of text; `anchor` says which part of it is at x."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}">{escape(content)}</text>'


def document(height: int, about: str, parts: Sequence[str]) -> str:
    """The whole figure; `about` is what a screen reader says of it."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13">'
    )
    return "\n".join([head, f"<title>{escape(about)}</title>", *parts, "</svg>", ""])
