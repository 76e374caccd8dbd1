"""Two models, or more, on the same tasks: by how much one is better, and whether that is more than chance.

Episodes are matched by task and attempt. What cannot be compared is refused, and an
episode whose outcome one side does not know is left out and counted. An episode that one
side lost could have ended either way: intervals and p-values hold whichever it was.

Tests and intervals need tasks that are independent of each other. Tasks of one family count
as one; of copies, which have the same content and start, the first counts. Types of task are
not families: they are fixed, and all of them are played.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

from bough.errors import InputError
from bough.evaluation.intervals import (
    Interval,
    Outlook,
    anytime_p,
    better_p,
    difference_interval,
    difference_sequence,
    holm,
    mean_interval,
    outlook,
    sign_flip,
)
from bough.evaluation.results import ModelResult, Outcome, by_task, mean, means

Against = Literal["first", "all"]
Played = tuple[Outcome, Outcome]
ANYTIME = "e-process, valid at any stopping time"


@dataclass(frozen=True)
class Difference:
    """The second's mean less the first's."""

    mean: float
    interval: Interval | None
    p: float

    def to_json(self) -> dict[str, Any]:
        return {"mean": self.mean, "interval": self.interval.to_json() if self.interval else None, "p": self.p}


@dataclass(frozen=True)
class Comparison:
    """How the second does against the first.

    `better` and `worse` count the tasks on which it does better and worse. `lost` counts
    the episodes that either side lost: they are in no mean, but in the interval and in p
    as the worst case of either direction. `copies` counts tasks that are left out as copies.
    `adjusted_p` is Holm's, over all comparisons made together; `significant` is judged by it.
    """

    first: str
    second: str
    tasks: int
    episodes: int
    left_out: int
    copies: int
    lost: int
    better: int
    worse: int
    rates: tuple[float, float]
    success: Difference
    reward: Difference | None
    test: str
    adjusted_p: float
    alpha: float
    comparisons: int
    outlook: Outlook

    @property
    def significant(self) -> bool:
        return self.adjusted_p < self.alpha

    def to_json(self) -> dict[str, Any]:
        parts = {name: value.to_json() if hasattr(value, "to_json") else value for name, value in vars(self).items()}
        return parts | {"rates": list(self.rates), "significant": self.significant}


def compare(
    models: Sequence[ModelResult],
    *,
    against: Against = "first",
    level: float = 0.95,
    sequential: bool = False,
    leave_out: Callable[[str], None] | None = None,
) -> list[Comparison]:
    """Every model with the first one, or all with all, corrected for how many comparisons that makes.

    A comparison that cannot be made is an InputError; with `leave_out` it is left out, and
    `leave_out` receives the reason.
    """
    wanted = combinations(models, 2) if against == "all" else [(models[0], other) for other in models[1:]]
    chosen = []
    for first, second in wanted:
        try:
            chosen.append((first, second, *comparable(first, second)))
        except InputError as error:
            if leave_out is None:
                raise
            leave_out(str(error))
    found = [_compare(*one, level, sequential, len(chosen)) for one in chosen]
    adjusted = holm([comparison.success.p for comparison in found])
    return [replace(one, adjusted_p=p) for one, p in zip(found, adjusted, strict=True)]


def matched(first: ModelResult, second: ModelResult) -> tuple[list[Played], set[str]]:
    """The episodes of both, task by task and attempt by attempt, and the tasks that are left out as copies.

    A copy has the content and the start of an earlier task, whatever came of it. Raises InputError where tasks
    are not the same.
    """
    others = {(outcome.task, outcome.attempt): outcome for outcome in second.outcomes}
    both = [(one, others[one.task, one.attempt]) for one in first.outcomes if (one.task, one.attempt) in others]
    if empty := [model.name for model in (first, second) if not model.outcomes]:
        raise InputError(f"{first.name} and {second.name}: {' and '.join(empty)} finished no episode")
    if not both:
        raise InputError(f"{first.name} and {second.name} have no task in common; evaluate both on the same tasks")
    unlike = sorted({one.task for one, other in both if one.digest and other.digest and one.digest != other.digest})
    if unlike:
        more = f" and {len(unlike) - 1} more" if len(unlike) > 1 else ""
        raise InputError(
            f"{first.name} and {second.name} played different tasks with the same name ({unlike[0]}{more}): "
            "the environment or its options differ, so their episodes cannot be matched"
        )
    named: dict[tuple[str, ...], str] = {}
    copies = set()
    for one, other in both:
        if one.start and other.start and one.family is other.family is None:
            content = (one.digest, one.start, other.digest, other.start)
            if named.setdefault(content, one.task) != one.task:
                copies.add(one.task)
    return [pair for pair in both if pair[0].task not in copies], copies


def comparable(first: ModelResult, second: ModelResult) -> tuple[list[Played], set[str]]:
    """`matched`; an InputError where no task has a known outcome for both."""
    pairs, copies = matched(first, second)
    if not known_pairs(pairs):
        raise InputError(f"{first.name} and {second.name}: no task has a known outcome for both")
    return pairs, copies


def known_pairs(pairs: Sequence[Played]) -> list[Played]:
    """Those of which both sides know whether it was a success."""
    return [(a, b) for a, b in pairs if a.success is not None and b.success is not None]


def task_differences(pairs: Sequence[Played], *, reward: bool = False) -> list[float]:
    """The second's mean less the first's, one for each task or family, over the attempts that both know."""
    found: dict[str, list[float]] = {}
    for one, other in pairs:
        mine, theirs = (one.reward, other.reward) if reward else (one.success, other.success)
        if mine is not None and theirs is not None:
            unit = other.unit if one.family is None else one.unit
            found.setdefault(unit, []).append(theirs - mine)
    return means(found)


def _compare(
    first: ModelResult,
    second: ModelResult,
    pairs: Sequence[Played],
    copied: set[str],
    level: float,
    sequential: bool,
    together: int,
) -> Comparison:
    # Every lost episode counts against whichever direction is asked about.
    everything = known_pairs(matched(first.assuming(True), second.assuming(False))[0])
    worst = task_differences(everything)
    best = task_differences(matched(first.assuming(False), second.assuming(True))[0])
    between = difference_sequence if sequential else difference_interval
    low, high = between(worst, level), between(best, level)
    assert low is not None and high is not None
    p = min(1.0, 2.0 * min(up_p(worst, sequential), up_p([-value for value in best], sequential)))
    known = known_pairs(pairs)
    rows = [one for model in (first, second) for one in model.assuming(True).outcomes if one.task not in copied]
    differences, alpha = task_differences(known), round(1.0 - level, 12)
    rewards = task_differences(pairs, reward=True)
    reward = None
    if rewards and not sequential:  # rewards have no known range, so that no test of them holds at any time
        reward = Difference(mean(rewards), mean_interval(rewards, level), sign_flip(rewards))
    rates = [mean(means(by_task(side, lambda outcome: outcome.success))) for side in zip(*known, strict=True)]
    test = "McNemar exact" if len(known) == len(differences) else "Gaffke by task"
    return Comparison(
        first=first.name,
        second=second.name,
        tasks=len(differences),
        episodes=len(known),
        left_out=len({(one.task, one.attempt) for one in rows}) - len(everything),
        copies=len(copied),
        lost=len(everything) - len(known),
        better=sum(value > 0 for value in differences),
        worse=sum(value < 0 for value in differences),
        rates=(rates[0], rates[1]),
        success=Difference(mean(differences), replace(low, high=high.high), p),
        reward=reward,
        test=ANYTIME if sequential else test,
        adjusted_p=p,
        alpha=alpha,
        comparisons=together,
        outlook=outlook(differences, alpha / together),
    )


def up_p(differences: Sequence[float], sequential: bool) -> float:
    """The one-sided p-value of "the mean difference is not above zero"."""
    return anytime_p(differences, one_sided=True) if sequential else better_p(differences)
