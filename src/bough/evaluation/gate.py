"""The gate between two stages: the new adapter is promoted only if it is better beyond chance.

It promotes a model that is no better in at most `alpha` of all decisions, whatever the
number of tasks; in doubt the earlier adapter is kept. That is exact where the two models
answer alike (the same model played twice), and simulated where only their means are equal
(docs/guides/evaluation.md has the assumptions). Lost episodes count against the new adapter: its
own as failures, the earlier one's as successes.

By type, it also refuses a model that is significantly worse on any type of task: what was
learnt before is not to be unlearnt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from bough.config.groups import ReportConfig
from bough.errors import InputError
from bough.evaluation.comparison import Played, compare, copies, known_pairs, matched, task_differences, up_p
from bough.evaluation.contest import StatisticsConfig
from bough.evaluation.paired import holm
from bough.evaluation.results import ModelResult, Results
from bough.evaluation.success import reports
from bough.files import write_json
from bough.ledger import plural


class CompareConfig(ReportConfig):
    """Compares results of `bough eval --environment`, matched by task and attempt."""

    statistics: StatisticsConfig = StatisticsConfig()
    files: list[Path] = Field(
        min_length=1,
        description="result files, or the folders that contain them",
        json_schema_extra={"positional": True},
    )
    gate: bool = Field(False, description="exit with 1 unless the last model is significantly better than the first")
    gate_by_type: bool = Field(
        False, description="with --gate: also exit with 1 if the last model is significantly worse on any type of task"
    )
    output: Path | None = Field(
        None, description="also write the report to this JSON file", json_schema_extra={"short": "-o"}
    )

    @model_validator(mode="after")
    def _types_are_of_the_gate(self) -> Self:
        if self.gate_by_type and not self.gate:
            raise ValueError("--gate-by-type needs --gate")
        return self


@dataclass(frozen=True)
class TypeChange:
    """The change on one type of task. `p` is that of "it is not worse", one-sided, corrected for all types (Holm)."""

    type: str | None
    tasks: int
    difference: float
    p: float

    def __str__(self) -> str:
        points = f"{100 * self.difference:+.1f} points on {plural(self.tasks, 'task')}"
        return f"{self.type} ({points}, corrected p = {self.p:.2g})"


@dataclass(frozen=True)
class Decision:
    """Whether `after` takes the place of `before`. `false_positive_rate` is the most that such a yes may err.

    `types` is empty unless the decision was by type.
    """

    promote: bool
    reason: str
    before: str
    after: str
    difference: float
    p: float
    false_positive_rate: float
    tasks: int
    lost: int
    types: tuple[TypeChange, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def gate(
    before: ModelResult,
    after: ModelResult,
    *,
    alpha: float = 0.05,
    sequential: bool = False,
    by_type: bool = False,
) -> Decision:
    """Decides by a one-sided test on the tasks that both played.

    `sequential`: the number of tasks was decided by looking at the results, so that the
    test must hold at any time. `by_type`: a significant loss on any type of task refuses the
    model; at most a share `alpha` of models without any loss are refused for it.
    """
    known = known_pairs(matched(before, after))
    if not known:
        raise InputError(f"{before.name} and {after.name}: no task has a known outcome for both")
    pairs = known_pairs(matched(before.assuming(True), after.assuming(False)))
    differences, lost = task_differences(pairs), len(pairs) - len(known)
    mean, p = math.fsum(differences) / len(differences), up_p(differences, sequential)
    types = type_changes(pairs, sequential) if by_type else ()
    worse = [change for change in types if change.p <= alpha]
    promote = p <= alpha and not worse
    seen = f"{100 * mean:+.1f} points on {plural(len(differences), 'task')}, one-sided p = {p:.2g}"
    if lost:
        seen += f", {lost} lost episode{'s' if lost > 1 else ''} counted against it"
    if copied := len(copies(before, after)):
        seen += f", {plural(copied, 'task')} with the content and start of another one left out"
    verdict = "is better: promoted" if promote else "is not shown to be better: the earlier model is kept"
    if worse:
        verdict = f"is worse on {', '.join(map(str, worse))}: the earlier model is kept"
    reason = f"{after.name} {verdict} ({seen}; at most {alpha:.2g} of such decisions promote a model that is no better)"
    return Decision(promote, reason, before.name, after.name, mean, p, alpha, len(differences), lost, types)


def type_changes(pairs: Sequence[Played], sequential: bool = False) -> tuple[TypeChange, ...]:
    """The change on each type of task, in order of appearance. Tasks that name no type are one type."""
    by_type: dict[str | None, list[Played]] = {}
    for pair in pairs:
        by_type.setdefault(pair[0].type or pair[1].type, []).append(pair)
    changes = {kind: task_differences(of_type) for kind, of_type in by_type.items()}
    corrected = holm([up_p([-value for value in found], sequential) for found in changes.values()])
    return tuple(
        TypeChange(kind, len(found), math.fsum(found) / len(found), p)
        for (kind, found), p in zip(changes.items(), corrected, strict=True)
    )


def alpha_of_round(alpha: float, number: int) -> float:
    """What round 1, 2, 3, … may spend, so that all rounds together, however many, err at most `alpha`."""
    return alpha / (number * (number + 1))


# Result files put side by side: every model of every file, and what follows from comparing them.


@dataclass(frozen=True)
class SideBySide:
    """Reports by model, comparisons, what to know about them, and the gate's decision where it was asked for."""

    reports: dict[str, Any]
    comparisons: list[dict[str, Any]]
    notes: list[str]
    decision: Decision | None
    level: float

    def to_json(self) -> dict[str, Any]:
        decided = self.decision.to_json() if self.decision is not None else None
        return {"reports": self.reports, "comparisons": self.comparisons, "gate": decided}

    def write(self, path: Path) -> None:
        write_json(path, self.to_json())


def side_by_side(files: Mapping[Path, Results], config: CompareConfig) -> SideBySide:
    """Compares the models of all files. Results of other tasks or fewer than two models are an InputError."""
    _check_comparable(files)
    models = _named_apart(files)
    if len(models) < 2:
        raise InputError(f"{next(iter(files))} contains one model; a comparison needs two: give a second file")
    early, level = any(results.stop_width is not None for results in files.values()), config.statistics.level
    found = compare(models, against=config.statistics.against, level=level, sequential=early)
    decision = None
    if config.gate:
        alpha = round(1.0 - level, 12)
        decision = gate(models[0], models[-1], alpha=alpha, sequential=early, by_type=config.gate_by_type)
    of_models = reports(models, level, early)
    return SideBySide(of_models, [one.to_json() for one in found], _notes(models), decision, level)


def _check_comparable(files: Mapping[Path, Results]) -> None:
    """Results from different environments, splits or seeds cannot be compared."""
    (first, reference), *others = files.items()
    problems = [
        f"{what} is {getattr(reference, what)!r} in {first} and {getattr(results, what)!r} in {path}"
        for path, results in others
        for what in ("environment", "options", "split", "seed")
        if getattr(results, what) != getattr(reference, what)
    ]
    if problems:
        raise InputError("these results cannot be compared:", problems)


def _named_apart(files: Mapping[Path, Results]) -> list[ModelResult]:
    """All models; a name that occurs in several files gets the file added."""
    names = [model.name for results in files.values() for model in results.models]
    return [
        model.model_copy(update={"name": f"{model.name} ({path})"}) if names.count(model.name) > 1 else model
        for path, results in files.items()
        for model in results.models
    ]


def _notes(models: list[ModelResult]) -> list[str]:
    """Settings that differ between the models: allowed, but the reader should know."""
    keys = sorted({key for model in models for key in model.settings} - {"adapter"})
    values = {key: [model.settings.get(key) for model in models] for key in keys}
    return [f"{key} differs: {some}" for key, some in values.items() if any(one != some[0] for one in some)]
