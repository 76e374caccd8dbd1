"""The gate between two stages: the new adapter is promoted only if it is better beyond chance.

It promotes a model that is no better in at most `alpha` of all decisions, whatever the
number of tasks; in doubt the earlier adapter is kept. That is exact where the two models
answer alike (the same model played twice), and simulated where only their means are equal
(docs/guides/evaluation.md has the assumptions). Lost episodes and those of unknown success count
against the new adapter: its own as failures, the earlier one's as successes.

By type, it also refuses a model that is significantly worse on any type of task: what was
learnt before is not to be unlearnt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bough.evaluation.comparison import Played, comparable, known_pairs, matched, task_differences, up_p
from bough.evaluation.intervals import holm
from bough.evaluation.results import ModelResult, mean
from bough.ledger import plural


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
    known, copied = comparable(before, after)
    pairs, _ = matched(before.assuming(True, unknown=True), after.assuming(False, unknown=True))
    differences, lost = task_differences(pairs), len(pairs) - len(known_pairs(known))
    change, p = mean(differences), up_p(differences, sequential)
    types = type_changes(pairs, sequential) if by_type else ()
    worse = [change for change in types if change.p <= alpha]
    promote = p <= alpha and not worse
    seen = f"{100 * change:+.1f} points on {plural(len(differences), 'task')}, one-sided p = {p:.2g}"
    if lost:
        seen += f", {lost} lost or unknown episode{'s' if lost > 1 else ''} counted against it"
    if copied:
        seen += f", {plural(len(copied), 'task')} with the content and start of another one left out"
    verdict = "is better: promoted" if promote else "is not shown to be better: the earlier model is kept"
    if worse:
        verdict = f"is worse on {', '.join(map(str, worse))}: the earlier model is kept"
    reason = f"{after.name} {verdict} ({seen}; at most {alpha:.2g} of such decisions promote a model that is no better)"
    return Decision(promote, reason, before.name, after.name, change, p, alpha, len(differences), lost, types)


def type_changes(pairs: Sequence[Played], sequential: bool = False) -> tuple[TypeChange, ...]:
    """The change on each type of task, in order of appearance. Tasks that name no type are one type."""
    by_type: dict[str | None, list[Played]] = {}
    for pair in pairs:
        by_type.setdefault(pair[0].type or pair[1].type, []).append(pair)
    changes = {kind: task_differences(of_type) for kind, of_type in by_type.items()}
    corrected = holm([up_p([-value for value in found], sequential) for found in changes.values()])
    return tuple(
        TypeChange(kind, len(found), mean(found), p)
        for (kind, found), p in zip(changes.items(), corrected, strict=True)
    )


def alpha_of_round(alpha: float, number: int) -> float:
    """What round 1, 2, 3, … may spend, so that all rounds together, however many, err at most `alpha`."""
    return alpha / (number * (number + 1))
