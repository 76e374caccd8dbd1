"""The tables of an experiment: what each stage of its runs reached, and what it gained, over all seeds.

An experiment is a folder of runs called NAME-seed-NUMBER, as `bough sweep` makes them. The episodes of all
seeds are taken together: a task that several seeds play is one task with several attempts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from tokenizers import Tokenizer

import bough
from bough.errors import InputError
from bough.evaluation.comparison import Comparison, compare
from bough.evaluation.intervals import holm
from bough.evaluation.results import Lost, ModelResult, Outcome, Results
from bough.evaluation.success import Measure, across_seeds, rate_of, report
from bough.experiments.recipe import plan, read_recipe
from bough.experiments.record import StageRecord
from bough.models.resolve import resolve
from bough.types import Trajectory

RUN = re.compile(r"(?P<name>.+)-seed-(?P<seed>\d+)")
EXPERT = "expert"
Row = Sequence[str]
Episode = TypeVar("Episode", Outcome, Lost)


@dataclass
class Measured:
    """One evaluation of the recipe, by seed. `name` is its own, `model` that of the stage which trained the model."""

    stage: str
    name: str
    model: str
    seeds: dict[int, ModelResult] = field(default_factory=dict)

    @property
    def together(self) -> ModelResult:
        """All seeds as one model that made several attempts at the tasks which they share."""
        outcomes = [_of_seed(one, seed) for seed, found in self.seeds.items() for one in found.outcomes]
        lost = [_of_seed(one, seed) for seed, found in self.seeds.items() for one in found.lost]
        return ModelResult(name=self.model, outcomes=outcomes, lost=lost)

    @property
    def tasks(self) -> set[str]:
        return {outcome.task for outcome in self.together.outcomes}

    @property
    def wins(self) -> list[Outcome]:
        return [outcome for outcome in self.together.outcomes if outcome.success]


def _of_seed(one: Episode, seed: int) -> Episode:
    # Two seeds may give different tasks the same name, and each may make several attempts.
    return one.model_copy(update={"task": f"{one.task} {one.digest}", "attempt": 1000 * seed + one.attempt})


def tables(folder: Path) -> str:
    """The tables of all runs in `folder` as Markdown, one section for each combination of settings."""
    runs: dict[str, dict[int, Path]] = defaultdict(dict)
    for path in sorted(folder.iterdir()):
        if found := RUN.fullmatch(path.name):
            runs[found["name"]][int(found["seed"])] = path
    sections = [(name, measured(seeds)) for name, seeds in runs.items()]
    return "\n\n".join(f"## {name}\n\n{section(found)}" for name, found in sections if found)


def measured(runs: dict[int, Path]) -> list[Measured]:
    """The finished evaluations of one recipe's runs, in the order of the stages."""
    found: dict[str, Measured] = {}
    for seed, folder in sorted(runs.items()):
        recipe = read_recipe(folder)
        for stage in plan(recipe):
            record = StageRecord.read(folder / stage.folder)
            if stage.verb != "eval" or record is None or not record.finished or "eval_file" in stage.settings:
                continue
            result = Results.read(folder / stage.folder).models[-1]
            if result.name == EXPERT:
                result = _with_tokens(result, folder / stage.folder / "models" / EXPERT, recipe.model)
            one = found.setdefault(stage.folder, Measured(stage.folder, stage.name, _trained_by(result.name)))
            one.seeds[seed] = result
    return [found[stage] for stage in sorted(found)]


def by_tasks(found: Sequence[Measured]) -> list[list[Measured]]:
    """Evaluations on the same tasks together, whatever their names."""
    groups: list[list[Measured]] = []
    for one in found:
        group = next((group for group in groups if group[0].tasks & one.tasks), None)
        if group is None:
            groups.append(group := [])
        group.append(one)
    return groups


def _with_tokens(expert: ModelResult, folder: Path, model: str) -> ModelResult:
    """The expert's outcomes with the tokens that its replies would be for the model, each with its end."""
    if not folder.is_dir() or not (file := Path(resolve(model)) / "tokenizer.json").is_file():
        return expert
    tokenizer = Tokenizer.from_file(str(file))
    counts = {
        (one.task.id, one.id.rpartition("#")[2]): sum(len(tokenizer.encode(t.reply.content).ids) + 1 for t in one.turns)
        for one in bough.read(folder / "trajectories.jsonl")
        if isinstance(one, Trajectory)
    }
    outcomes = [
        one.model_copy(update={"completion_tokens": counts.get((one.task, str(one.attempt)), 0)})
        for one in expert.outcomes
    ]
    return expert.model_copy(update={"outcomes": outcomes})


def _trained_by(model: str) -> str:
    """The stage that trained a model of the run, or the model's own name; that of a GGUF file without its folder."""
    path = Path(model.partition("@")[0])  # a folder outside the working directory has a digest in its name
    if path.name == "final":
        return path.parent.name.partition("-")[2]
    return path.name if path.suffix == ".gguf" else model


def section(found: Sequence[Measured]) -> str:
    """The tables of one recipe: success and gains, then by type of task, then mistakes."""
    groups = by_tasks(found)
    parts = [_success(groups)]
    for group in groups:
        columns = [one for one in group if one.model != EXPERT]
        reports = [report(one.together.outcomes, lost=one.together.lost) for one in columns]
        name, head = " / ".join(dict.fromkeys(one.name for one in group)), [one.model for one in columns]
        parts += _by(f"{name}: success by type of task", head, [one.types for one in reports])
        parts += _by(f"{name}: episodes with a mistake", head, [one.mistakes for one in reports])
    return "\n\n".join(parts)


def _success(groups: Sequence[Sequence[Measured]]) -> str:
    found = [one for group in groups for one in group]
    compared = [_against_the_one_before(group, number) for group in groups for number in range(len(group))]
    adjusted = iter(holm([one.success.p for _, one in filter(None, compared)]))
    head = ["evaluation", "model", "success", "by seed, %", "episodes", "turns per win", "tokens per win", "gain", "p"]
    rows = []
    for one, gain in zip(found, compared, strict=True):
        success = across_seeds(list(one.seeds.values()))
        rates = [f"{100 * rate:.1f}" for result in one.seeds.values() if (rate := rate_of(result)) is not None]
        lost = len(one.together.lost)
        rows.append([
            one.name, one.model, _rate(success), " ".join(rates),
            f"{success.episodes}, {lost} lost" if lost else f"{success.episodes}",
            _per_win(one, found, lambda win: win.turns), _per_win(one, found, lambda win: win.completion_tokens),
            *(_gain(*gain, next(adjusted)) if gain else ("", "")),
        ])  # fmt: skip
    note = (
        "Success: mean over seeds, 95% interval by seeds and by tasks, the wider. Gain: against the model before "
        "on the same tasks, 95% interval by tasks, then the gain of each seed; p corrected by Holm's method."
    )
    return f"{_table(head, rows)}\n\n{note}"


def _against_the_one_before(group: Sequence[Measured], number: int) -> tuple[list[float], Comparison] | None:
    """The comparison with the evaluation before on the same tasks, and the gain of each seed."""
    one = group[number]
    before = next((old for old in reversed(group[:number]) if old.model != EXPERT), None)
    if before is None or one.model == EXPERT:
        return None
    try:
        (comparison,) = compare([before.together, one.together])
    except InputError:  # no episode that both have finished
        return None
    rates = [(rate_of(before.seeds[seed]), rate_of(one.seeds[seed])) for seed in one.seeds if seed in before.seeds]
    return [new - old for old, new in rates if old is not None and new is not None], comparison


def _gain(seeds: list[float], found: Comparison, p: float) -> Row:
    interval = found.success.interval
    assert interval is not None
    by_seed = " ".join(f"{100 * gain:+.1f}" for gain in seeds)
    return (
        f"{100 * found.success.mean:+.1f} ({100 * interval.low:+.1f} to {100 * interval.high:+.1f}); {by_seed}",
        "< 0.0001" if p < 0.0001 else f"{p:.2g}",
    )


def _per_win(one: Measured, found: Sequence[Measured], cost: Callable[[Outcome], int]) -> str:
    """What its wins cost, and what the expert's cost on the same tasks."""
    if not any(map(cost, one.wins)):
        return ""
    known = {win.task: cost(win) for expert in found if expert.model == EXPERT for win in expert.wins}
    shared = [known[win.task] for win in one.wins if win.task in known]
    beside = f" (expert {fmean(shared):.1f})" if any(shared) and one.model != EXPERT else ""
    return f"{fmean(map(cost, one.wins)):.1f}{beside}"


def _by(title: str, head: Row, columns: Sequence[dict[str, Measure]]) -> Iterator[str]:
    """A table of rates by name; none where there is nothing to tell apart, or nothing but zeros."""
    names = dict.fromkeys(name for column in columns for name in column)
    if len(names) > 1 and any(measure.mean for column in columns for measure in column.values()):
        rows = [[name, *(_rate(column[name]) if name in column else "" for column in columns)] for name in names]
        yield f"{title}\n\n{_table(['', *head], rows)}"


def _rate(measure: Measure) -> str:
    if measure.mean is None or measure.interval is None:
        return "unknown"
    return f"{measure.mean:.1%} ({100 * measure.interval.low:.1f}–{100 * measure.interval.high:.1f})"


def _table(head: Row, rows: Iterable[Row]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *rows))
