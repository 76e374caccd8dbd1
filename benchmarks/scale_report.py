"""The tables and the figure of `scale.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bough.experiments.sweep_table import FAINT, WIDTH, document, text_at

FOUND = Path(__file__).with_name("scale.json")
Row = dict[str, Any]
SERIES = [
    ("workers write", "100 MB", "workers write, 100 MB", "#3f9b5f"),
    ("workers write", "10 GB", "workers write, 10 GB", "#3f7f9b"),
    ("one writer", None, "one writer", "#b5562f"),
    ("fixed batch", None, "workers write, batches of 512 groups", "#8a63a8"),
]
COLUMNS: dict[str, Callable[[Row], str]] = {
    "episodes/s": lambda row: f"{row['episodes_per_s']:,.0f}",
    "learnt tokens/s": lambda row: f"{row['learnt_per_s']:,.0f}",
    "of full engines": lambda row: f"{row['rollout_use']:.0%}",
    "rollout GPUs idle": lambda row: f"{row['rollout_idle']:.0%}",
    "learner GPUs idle": lambda row: f"{row['learner_idle']:.0%}",
    "driver or writers busy": lambda row: f"{row['driver_busy']:.0%}",
    "staleness": lambda row: f"{row['staleness']:.2f}",
    "dropped as stale": lambda row: f"{row['stale_share']:.1%}",
    "s per batch": lambda row: f"{row['seconds_per_batch']:,.1f}",
    "weights everywhere, s": lambda row: f"{row['weights_everywhere_s']:,.2f}",
}


def load() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FOUND.read_text())
    return found


def tables(found: dict[str, Any]) -> dict[str, str]:
    """Markdown tables by title."""
    rows = found["rows"]
    return {
        "One writer": _growing([row for row in rows if row["table"] == "one writer"]),
        "Batches of 512 groups": _growing([row for row in rows if row["table"] == "fixed batch"]),
        "Workers write": _growing(_usual(rows)),
        "Size of the weights": sizes_table([row for row in rows if row["table"] == "workers write"]),
        "One thing changed": varied_table([row for row in rows if row["table"] == "varied"]),
        "Failing nodes": varied_table([row for row in rows if row["table"] == "failing"]),
        "Predicted and measured: staleness": streaming_table(found["streaming"]),
        "Constants": constants_table(found["constants"]),
    }


def markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _usual(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["table"] == "workers write" and row["weights"] == "100 MB"]


def _growing(rows: list[Row]) -> str:
    head = ["GPUs (rollout + learner)", "groups per batch", *COLUMNS]
    return markdown(
        head,
        [
            [
                f"{row['GPUs']:,} ({row['rollout_gpus']:,} + {row['learner_gpus']:,})",
                f"{row['batch_groups']:,}",
                *(show(row) for show in COLUMNS.values()),
            ]
            for row in rows
        ],
    )


def sizes_table(rows: list[Row]) -> str:
    """Learnt tokens/s and seconds until the weights are everywhere, by GPUs and size."""
    sizes = list(dict.fromkeys(row["weights"] for row in rows))
    lines = []
    for gpus in dict.fromkeys(row["GPUs"] for row in rows):
        of = {row["weights"]: row for row in rows if row["GPUs"] == gpus}
        cells = [f"{of[size]['learnt_per_s']:,.0f} ({of[size]['weights_everywhere_s']:.2g} s)" for size in sizes]
        lines.append([f"{gpus:,}", *cells])
    return markdown(["GPUs", *sizes], lines)


def varied_table(rows: list[Row]) -> str:
    usual = rows[0]["learnt_per_s"]
    shown = [name for name in COLUMNS if name != "driver or writers busy"]
    return markdown(
        ["changed", "relative", *shown],
        [[row["what"], f"{row['learnt_per_s'] / usual:.2f}", *(COLUMNS[name](row) for name in shown)] for row in rows],
    )


def streaming_table(rows: list[Row]) -> str:
    def cell(value: float | list[float], form: str) -> str:
        if isinstance(value, float):
            return f"**{value:{form}}**"
        mean, low, high = value
        return f"{mean:{form}} ({low:{form}} to {high:{form}})"

    forms = {"seconds_per_batch": ".2f", "staleness": ".2f", "stale_share": ".1%"}
    lines = [
        [row["max_staleness"], row["what"], *(cell(row[name], form) for name, form in forms.items())] for row in rows
    ]
    return markdown(["max_staleness", "", "s per batch", "mean staleness", "calls dropped as too old"], lines)


def constants_table(constants: dict[str, Row]) -> str:
    def number(value: float) -> str:
        return f"{value:,.6g}" if 1e-4 <= value < 1e7 else f"{value:.3g}"

    lines = [
        [f"`{name}`", number(one["value"]), one["unit"], _source(one["source"]), one["how"]]
        for name, one in constants.items()
    ]
    return markdown(["constant", "value", "unit", "source", "how"], lines)


def _source(source: str) -> str:
    return "assumed" if source == "assumed" else f"`benchmarks/results/{source}`"


def draw_scale(found: dict[str, Any]) -> str:
    """Learnt tokens per second and GPU over GPUs, both logarithmic: a level line loses nothing."""
    left, right, top, bottom = 80, WIDTH - 30, 15, 300
    across = lambda gpus: left + (right - left) * math.log(gpus / 8) / math.log(1250)  # noqa: E731
    down = lambda rate: bottom - (bottom - top) * math.log10(rate) / 4  # noqa: E731
    parts = []
    for rate in (1, 10, 100, 1000, 10_000):
        y = down(rate)
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>')
        parts.append(text_at(left - 10, y + 4, f"{rate:,}/s", "end"))
    for gpus in (8, 32, 128, 512, 2048, 10_000):
        parts.append(text_at(across(gpus), bottom + 20, f"{gpus:,}", "middle"))
    parts.append(text_at((left + right) / 2, bottom + 40, "GPUs", "middle"))
    about = []
    for number, (table, size, label, colour) in enumerate(SERIES):
        rows = [row for row in found["rows"] if row["table"] == table and (size is None or row["weights"] == size)]
        rates = {row["GPUs"]: row["learnt_per_s"] / row["GPUs"] for row in rows}
        points = [(across(gpus), down(rate)) for gpus, rate in rates.items()]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in points]
        y = bottom - 92 + 20 * number
        line = f'<line x1="{left + 15}" x2="{left + 40}" y1="{y}" y2="{y}"'
        parts.append(f'{line} stroke="{colour}" stroke-width="2.5"/>')
        parts.append(text_at(left + 48, y + 4, label))
        about.append(f"{label}: " + ", ".join(f"{rate:,.0f} at {gpus:,}" for gpus, rate in rates.items()))
    return document(bottom + 52, "Predicted learnt tokens per second and GPU. " + "; ".join(about), parts)
