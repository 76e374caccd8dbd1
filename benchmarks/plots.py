"""The plots of the documentation, as SVG, from the committed numbers: docs/notes/ and benchmarks/results/.

    python -m benchmarks.plots

writes docs/plots/. A test compares the files with what this script makes.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks import scale

from bough.experiments.sweep_table import FAINT, WIDTH, document, text_at

ROOT = Path(__file__).parents[1]
NOTES = ROOT / "docs" / "notes"
MEASURED = ROOT / "benchmarks" / "results"
MARK = "#3f9b5f"
LABEL, ROW = 350, 30

# What is compared, the file with the measurement, which of its ratios, and the words around the ratio there.
SPEEDS = [
    ("Round-wise DPO, 30 rounds, 4B, LoRA, H200", "h200-dpo-compiled.md", 0, "TRL's best"),
    ("Round-wise DPO, 30 rounds, 135M, LoRA, CPU", "dpo-cpu.md", 1, "TRL's best"),
    ("Episodes of 10 turns, 0.6B, H200 vs. generate", "rollouts.md", -1, "transformers generate"),
    ("Round-wise DPO, 15 rounds, 4B, LoRA, H200", "h200-dpo.md", 0, "TRL's best"),
    ("Episodes of 10 turns, 135M, CPU vs. generate", "rollouts.md", 0, "transformers generate"),
    ("GRPO update, 4B, LoRA, H200", "h200-grpo.md", 0, "TRL's best"),
    ("SFT, 0.6B, LoRA, H200", "h200-sft-0.6b.md", 1, "TRL's best"),
    ("SFT, 4B, LoRA, H200", "h200-sft-compiled.md", 1, "TRL's best"),
    ("SFT, 4B, all weights, H200", "h200-sft-compiled.md", 0, "TRL's best"),
    ("Whole-episode DPO, 4B, LoRA, H200", "h200-episode-dpo.md", 0, "TRL's best"),
]
# The file of a plot, the page in docs/notes/ and the heading above its table.
SECTIONS = {
    "demo": ("results-web.md", "The demo"),
    "ef-dpo": ("results-web.md", "EF-DPO on two pages"),
    "roundwise-dpo": ("results-household.md", "Round-wise DPO in a household, on an H200"),
    "grpo-web": ("results-web.md", "GRPO on the web, on an H200"),
}
# The experiments of `benchmarks/experiments.py` that are drawn, and the evaluation of each.
EXPERIMENTS = {"alfworld": "seen", "miniwob-adapter": "unseen"}


# Tables of sweeps in benchmarks/results/ with a mean and an interval per setting: file, heading of the first column,
# and what is drawn.
SWEEPS = {
    "ef-dpo-pairs": ("ef-dpo.md", "pairs.kinds", "Success after DPO with 95% intervals"),
    "ef-dpo-dense": ("ef-dpo-dense.md", "pairs.progress_margin", "Success after DPO with 95% intervals"),
    "ef-dpo-beta": ("ef-dpo.md", "β", "Points that DPO gains, with 95% intervals"),
    "ef-dpo-demonstrations": ("ef-dpo.md", "demonstrations", "Points that DPO gains, with 95% intervals"),
}


@dataclass(frozen=True)
class Rate:
    """A row of an evaluation's table: success or a gain of it, and its interval, in percent."""

    name: str
    success: float
    low: float
    high: float


def main() -> None:
    for name, text in plots().items():
        (ROOT / "docs" / "plots" / name).write_text(text)


def plots() -> dict[str, str]:
    """File name and content of every plot."""
    drawn = {f"{name}.svg": draw_rates(rates(section(*place))) for name, place in SECTIONS.items()}
    for name, evaluation in EXPERIMENTS.items():
        drawn[f"{name}.svg"] = draw_rates(experiment_rates((MEASURED / f"{name}.md").read_text(), evaluation))
    for name, (file, column, about) in SWEEPS.items():
        drawn[f"{name}.svg"] = draw_rates(sweep_rates((MEASURED / file).read_text(), column), about)
    curve = held_out_curve(section(*SECTIONS["grpo-web"]))
    drawn_scale = scale.draw_scale(scale.load())
    return drawn | {"grpo-curve.svg": draw_curve(curve), "speed.svg": draw_speeds(speeds()), "scale.svg": drawn_scale}


def section(name: str, heading: str) -> str:
    """The text of a page in docs/notes/ between a heading of the second level and the next one."""
    page = (NOTES / name).read_text()
    return re.split(r"^## ", page, flags=re.MULTILINE)[1:][_headings(page).index(heading)]


def rates(text: str) -> list[Rate]:
    """The rows of the first table that `bough run` printed."""
    table = text.partition("\nevaluation ")[2].partition("```")[0]
    rows = re.findall(r"^\d\d-(\S+) +([\d.]+)% +([\d.]+)% – ([\d.]+)% ", table, flags=re.MULTILINE)
    return [Rate(name, float(success), float(low), float(high)) for name, success, low, high in rows]


def experiment_rates(text: str, evaluation: str) -> list[Rate]:
    """The rows of an evaluation in an experiment's table: one per model, in the order of training.

    A file begins with the newest run; those before it have headings of the first level, too.
    """
    newest = text.partition("\n# ")[0]
    row = rf"^\| {re.escape(evaluation)} \| (\S+) \| ([\d.]+)% \(([\d.]+)–([\d.]+)\) \|"
    found = re.findall(row, newest, flags=re.MULTILINE)
    return [Rate(name, float(success), float(low), float(high)) for name, success, low, high in found]


def sweep_rates(text: str, column: str) -> list[Rate]:
    """A row per value of a setting, from the table whose first column it is: success, or a gain in points."""
    table = text.partition(f"\n| {column} |")[2].partition("\n\n")[0]
    success = r"^\| (.+?) \| (?:05-after-sft|09-after-dpo) \| ([\d.]+)% \| ([\d.]+)% – ([\d.]+)% \|"
    gain = r"^\| (.+?) \| [-+\d. ]+ \| ([-+\d.]+) \(([-+\d.]+) to ([-+\d.]+)\) \|"
    found = re.findall(success, table, flags=re.MULTILINE) or re.findall(gain, table, flags=re.MULTILINE)
    names = {"all": "after SFT", "null": "none"}
    return [Rate(names.get(name, name), float(mean), float(low), float(high)) for name, mean, low, high in found]


def held_out_curve(text: str) -> list[tuple[int, float]]:
    """Step and held-out success in percent, from the table of online GRPO."""
    return [
        (int(step), float(success))
        for step, success in re.findall(r"^\| (\d+) \| ([\d.]+)% \|", text, flags=re.MULTILINE)
    ]


def speeds() -> list[tuple[str, float]]:
    """What is compared and how many times faster Bough is, largest first."""
    found = []
    for label, file, number, words in SPEEDS:
        ratios = re.findall(rf"([\d.]+)× {re.escape(words)}(?! with)\b", (MEASURED / file).read_text())
        found.append((label, float(ratios[number])))
    return sorted(found, key=lambda row: -row[1])


def draw_rates(rows: list[Rate], about: str = "Success with 95% intervals") -> str:
    """One line per evaluation: a dot at the success rate on its interval."""
    left, right = 150, WIDTH - 90
    first = -20 if min(row.low for row in rows) < 0 else 0
    across = lambda percent: left + (right - left) * (percent - first) / (100 - first)  # noqa: E731
    height = ROW * len(rows) + 40
    parts = [_axis(across(tick), 10, height - 30, f"{tick}%") for tick in range(first, 101, 20)]
    for number, row in enumerate(rows):
        y = 25 + ROW * number
        parts += [
            text_at(left - 12, y + 4, row.name, "end"),
            f'<line x1="{across(row.low):.1f}" x2="{across(row.high):.1f}" y1="{y}" y2="{y}" '
            f'stroke="{MARK}" stroke-width="4" stroke-opacity="0.5" stroke-linecap="round"/>',
            f'<circle cx="{across(row.success):.1f}" cy="{y}" r="6" fill="{MARK}"/>',
            text_at(right + 12, y + 4, f"{row.success:.1f}%"),
        ]
    all_rows = ", ".join(f"{row.name} {row.success:.1f}% ({row.low:.1f} to {row.high:.1f})" for row in rows)
    return document(height, f"{about}: {all_rows}", parts)


def draw_curve(points: list[tuple[int, float]]) -> str:
    """Held-out success over optimizer steps."""
    left, right, top, bottom = 60, WIDTH - 40, 15, 175
    last = points[-1][0]
    across = lambda step: left + (right - left) * (step - 1) / (last - 1)  # noqa: E731
    down = lambda percent: bottom - (bottom - top) * (percent - 40) / 40  # noqa: E731
    parts = []
    for percent in range(40, 81, 10):
        y = down(percent)
        parts += [
            f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>',
            text_at(left - 10, y + 4, f"{percent}%", "end"),
        ]
    path = " ".join(f"{across(step):.1f},{down(percent):.1f}" for step, percent in points)
    parts.append(f'<polyline points="{path}" fill="none" stroke="{MARK}" stroke-width="3"/>')
    for step, percent in points:
        x, y = across(step), down(percent)
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{MARK}"/>',
            text_at(x, y - 11, f"{percent:.1f}%", "middle"),
            text_at(x, bottom + 20, f"step {step}", "middle"),
        ]
    about = ", ".join(f"step {step} {percent:.1f}%" for step, percent in points)
    return document(bottom + 35, f"Held-out success during GRPO: {about}", parts)


def draw_speeds(rows: list[tuple[str, float]]) -> str:
    """Bars on a logarithmic scale that starts at 1×, where both are equally fast."""
    left, right = LABEL, WIDTH - 70
    across = lambda ratio: left + (right - left) * math.log(ratio) / math.log(64)  # noqa: E731
    height = ROW * len(rows) + 45
    parts = [_axis(across(tick), 10, height - 30, f"{tick}×") for tick in (1, 2, 4, 8, 16, 32, 64)]
    for number, (label, ratio) in enumerate(rows):
        y = 18 + ROW * number
        parts += [
            text_at(left - 12, y + 13, label, "end"),
            f'<rect x="{left}" y="{y}" width="{across(ratio) - left:.1f}" height="18" rx="3" fill="{MARK}"/>',
            text_at(across(ratio) + 8, y + 13, f"{ratio:.3g}×"),
        ]
    about = ", ".join(f"{label} {ratio:.3g}×" for label, ratio in rows)
    return document(height, f"How many times faster Bough is: {about}", parts)


def _headings(page: str) -> list[str]:
    return re.findall(r"^## (.+)$", page, flags=re.MULTILINE)


def _axis(x: float, top: int, bottom: int, label: str) -> str:
    line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" stroke="{FAINT}"/>'
    return line + text_at(x, bottom + 20, label, "middle")


if __name__ == "__main__":
    main()
