"""The figure of a sweep, as SVG: success over the first varied setting, one series per combination of the others.

A large dot is the mean over seeds on its interval, small dots are the seeds. Colours have a
middle brightness, so that they are readable on light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from bough.config.yaml_file import write_value
from bough.sweeps.svg import FAINT, INK, document, text_at
from bough.sweeps.table import LEVEL, SweepRow
from bough.sweeps.variations import label

COLOURS = ("#3f9b5f", "#4a86c8", "#c2702e", "#9a6bc4", "#b8566f", "#8a8f2a")
LEFT, RIGHT, HEIGHT, LEGEND_ROW = 60, 730, 240, 20
# Pixels between series at one value, and between the axis' ends and the outer values.
DODGE, MARGIN = 9, 50
# Values that span this factor are drawn on a logarithmic axis.
LOGARITHMIC = 10


class Axis:
    """Where the values of the varied setting are: to scale if they are numbers, else side by side."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = list(values)
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        self.to_scale = numbers and len(self.values) > 1
        self.log = self.to_scale and min(values) > 0 and max(values) / min(values) >= LOGARITHMIC
        places = [self._scaled(value) for value in values] if self.to_scale else list(range(len(self.values)))
        low, high = min(places), max(places)
        start, width = LEFT + MARGIN, RIGHT - LEFT - 2 * MARGIN
        self.places = [start + width * ((one - low) / (high - low) if high > low else 0.5) for one in places]

    def place(self, value: Any) -> float:
        """The x coordinate of one of the values."""
        return next(place for place, one in zip(self.places, self.values, strict=True) if _same(one, value))

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.log else float(value)


def draw(rows: Sequence[SweepRow]) -> str:
    """The figure of the rows of one evaluation, which all have the same varied settings."""
    first, *others = rows[0].values
    axis = Axis(_distinct([row.values[first] for row in rows]))
    series = _distinct([{key: row.values[key] for key in others} for row in rows])
    top = 15 + LEGEND_ROW * (len(series) if others else 0)
    bottom = top + HEIGHT
    parts = [_grid(top, bottom, percent) for percent in range(0, 101, 20)]
    parts += [
        text_at(x, bottom + 20, write_value(value), "middle") for x, value in zip(axis.places, axis.values, strict=True)
    ]
    scale = ", logarithmic" if axis.log else ""
    parts.append(text_at((LEFT + RIGHT) / 2, bottom + 44, f"{first}{scale}", "middle"))
    parts.append(text_at(RIGHT, bottom + 44, rows[0].evaluation, "end"))
    for number, values in enumerate(series):
        colour, shift = COLOURS[number % len(COLOURS)], DODGE * (number - (len(series) - 1) / 2)
        if others:
            y = 12 + LEGEND_ROW * number
            parts.append(f'<circle cx="{LEFT + 6}" cy="{y}" r="5" fill="{colour}"/>')
            parts.append(text_at(LEFT + 18, y + 4, label(values)))
        mine = [row for row in rows if {key: row.values[key] for key in others} == values]
        places = [axis.place(row.values[first]) + shift for row in mine]
        parts += _series(mine, places, (top, bottom), colour, joined=axis.to_scale)
    return document(bottom + 58, _about(rows), parts)


def _series(
    rows: Sequence[SweepRow], places: Sequence[float], span: tuple[int, int], colour: str, *, joined: bool
) -> list[str]:
    def down(rate: float) -> float:
        return span[1] - (span[1] - span[0]) * rate

    known = [(x, row) for x, row in zip(places, rows, strict=True) if row.success.mean is not None]
    known.sort(key=lambda pair: pair[0])
    parts = []
    for (x1, one), (x2, other) in pairwise(known) if joined else ():
        assert one.success.mean is not None and other.success.mean is not None
        ends = f'x1="{x1:.1f}" y1="{down(one.success.mean):.1f}" x2="{x2:.1f}" y2="{down(other.success.mean):.1f}"'
        parts.append(f'<line {ends} stroke="{colour}" stroke-opacity="0.6"/>')
    for x, row in known:
        assert row.success.mean is not None
        if (interval := row.success.interval) is not None:
            ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="{down(interval.low):.1f}" y2="{down(interval.high):.1f}"'
            style = f'stroke="{colour}" stroke-width="4" stroke-opacity="0.5" stroke-linecap="round"'
            parts.append(f"<line {ends} {style}/>")
        parts += [
            f'<circle cx="{x:.1f}" cy="{down(rate):.1f}" r="2.5" fill="none" stroke="{INK}"/>'
            for rate in row.rates.values()
            if rate is not None
        ]
        parts.append(f'<circle cx="{x:.1f}" cy="{down(row.success.mean):.1f}" r="5" fill="{colour}"/>')
    return parts


def _distinct(values: Sequence[Any]) -> list[Any]:
    """The different values in their order; lists and mappings are values too."""
    return [value for at, value in enumerate(values) if not any(_same(value, one) for one in values[:at])]


def _same(one: Any, other: Any) -> bool:
    return bool(one == other and isinstance(one, bool) == isinstance(other, bool))


def _about(rows: Sequence[SweepRow]) -> str:
    said = [f"{label(row.values)}: {row.mean}" + (f" ({row.interval})" if row.interval else "") for row in rows]
    return f"{rows[0].evaluation}: success with {LEVEL:.0%} intervals across seeds: {'; '.join(said)}"


def _grid(top: int, bottom: int, percent: int) -> str:
    y = bottom - (bottom - top) * percent / 100
    line = f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>'
    return line + text_at(LEFT - 10, y + 4, f"{percent}%", "end")
