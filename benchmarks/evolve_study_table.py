"""The table of `evolve_study.py`: success of each arm over all seeds, and its difference from evolving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.experiment_table import Measured

from bough.errors import InputError
from bough.evaluation.comparison import compare
from bough.evaluation.intervals import holm
from bough.evaluation.results import ModelResult, Results
from bough.evaluation.success import across_seeds, rate_of

FIRST = "evolve"
HEAD = ("arm", "success", "by seed, %", "against evolve", "p", "tokens", "× evolve's", "updates", "shrinkage by seed")
NOTE = (
    "Success on tasks that nothing was trained or selected on: mean over seeds, 95% interval by seeds and by tasks, "
    "the wider. Against evolve: difference in percentage points on the same tasks, 95% interval by tasks; p corrected "
    "by Holm's method. Tokens: computed in training, sampled for learning and for selection, in all seeds together. "
    "Shrinkage: success when the winner was selected less that on the tasks of `bough evolve`'s own last measurement."
)


@dataclass(frozen=True)
class Arm:
    """One arm of one seed: what is in its `result.json`, and the episodes of its evaluation."""

    facts: dict[str, Any]
    result: ModelResult

    @classmethod
    def of(cls, facts: dict[str, Any], evaluation: Path) -> Arm:
        result = Results.read(evaluation).models[-1]
        report = facts["report"]
        kept = {key: report[key] for key in ("selected", "untouched", "shrinkage", "empty_updates")}
        numbers = {"tokens": report["tokens_computed"], "updates": report["updates"], "success": rate_of(result)}
        settings = report["winner"]["settings"]
        plain = {"arm": facts["arm"], "seed": facts["seed"], "steps_of_first_generation": facts["updates"]}
        return cls({**plain, **numbers, "winner_settings": settings, **kept}, result)


def table(arms: Sequence[Arm]) -> str:
    """Markdown: a row per arm."""
    if not arms:
        return "No arm has finished."
    by_name = {name: [one for one in arms if one.facts["arm"] == name] for name in dict.fromkeys(map(_name, arms))}
    measured = {name: _measured(name, several) for name, several in by_name.items()}
    gains = {name: _gain(measured.get(FIRST), one) for name, one in measured.items() if name != FIRST}
    known = {name: gain for name, gain in gains.items() if gain is not None}
    adjusted = dict(zip(known, holm([p for _, p in known.values()]), strict=True))
    rows = []
    for name, several in by_name.items():
        gain = f"{known[name][0]}" if name in known else ""
        p = f"{adjusted[name]:.2g}" if name in adjusted else ""
        rows.append([name, *_success(measured[name]), gain, p, *_compute(several, by_name.get(FIRST, []))])
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{NOTE}"


def _name(arm: Arm) -> str:
    return str(arm.facts["arm"])


def _measured(name: str, arms: Sequence[Arm]) -> Measured:
    return Measured(name, name, name, {one.facts["seed"]: one.result for one in arms})


def _success(one: Measured) -> tuple[str, str]:
    found = across_seeds(list(one.seeds.values()))
    rates = [f"{100 * rate:.1f}" for result in one.seeds.values() if (rate := rate_of(result)) is not None]
    if found.mean is None or found.interval is None:
        return "unknown", " ".join(rates)
    low, high = 100 * found.interval.low, 100 * found.interval.high
    return f"{100 * found.mean:.1f}% ({low:.1f} to {high:.1f})", " ".join(rates)


def _gain(first: Measured | None, one: Measured) -> tuple[str, float] | None:
    """The difference from the first arm, on the seeds that both have, and its p."""
    if first is None:
        return None
    both = [
        Measured(arm.stage, arm.name, arm.model, {seed: arm.seeds[seed] for seed in arm.seeds if seed in other.seeds})
        for arm, other in ((first, one), (one, first))
    ]
    try:
        (found,) = compare([both[0].together, both[1].together])
    except InputError:  # no episode that both have finished
        return None
    interval = found.success.interval
    between = f" ({100 * interval.low:+.1f} to {100 * interval.high:+.1f})" if interval else ""
    return f"{100 * found.success.mean:+.1f}{between}", found.success.p


def _compute(arms: Sequence[Arm], first: Sequence[Arm]) -> tuple[str, str, str, str]:
    seeds = {one.facts["seed"] for one in arms}
    tokens = sum(one.facts["tokens"] for one in arms)
    budget = sum(one.facts["tokens"] for one in first if one.facts["seed"] in seeds)
    shrinkage = [one.facts["shrinkage"] for one in arms]
    said = " ".join("unknown" if one is None else f"{100 * one:+.1f}" for one in shrinkage)
    updates = sum(one.facts["updates"] for one in arms)
    return f"{tokens:,}", f"{tokens / budget:.2f}" if budget else "", f"{updates:,}", said
