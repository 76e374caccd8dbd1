"""The report of one model: how often it succeeds and how sure that is, what it costs, and how it fails.

A lost episode could have been a success or a failure. Every success rate is the mean over
the episodes that ended; its interval reaches from the lower end with all lost episodes as
failures to the upper end with all of them as successes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bough.evaluation.intervals import Interval, mean_interval, rate_interval
from bough.evaluation.outcomes import Lost, Outcome, by_task, means
from bough.evaluation.pass_at_k import ladder, pass_all, pass_at
from bough.evaluation.sequential import confidence_sequence

ByTask = dict[str, list[float]]
BOUNDED = "lost episodes as failures at the lower end, as successes at the upper end"


@dataclass(frozen=True)
class Measure:
    """A mean over tasks, and where it may lie; None where nothing is known."""

    mean: float | None
    interval: Interval | None
    episodes: int

    def to_json(self) -> dict[str, Any]:
        interval = self.interval.to_json() if self.interval else None
        return {"mean": self.mean, "interval": interval, "episodes": self.episodes}


@dataclass(frozen=True)
class SuccessReport:
    """Everything about one model.

    Failures are counted by how the episode ended, errors by kind over all turns; a
    mistake's rate is the share of ended episodes in which it was made at all.
    """

    tasks: int
    episodes: int
    unknown: int
    lost: int
    lost_by_task: dict[str, int]
    success: Measure
    reward: Measure
    turns: Measure
    prompt_tokens: Measure
    completion_tokens: Measure
    pass_at: dict[int, Measure]
    pass_all: dict[int, Measure]
    failures: dict[str, int]
    errors: dict[str, int]
    invalid_rate: float | None
    mistakes: dict[str, Measure]
    types: dict[str, Measure]

    def to_json(self) -> dict[str, Any]:
        return {name: _plain(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class TaskAttempts:
    """The attempts at each task, 1 for a success: those that ended, and with the lost ones as failures or successes."""

    known: ByTask
    sides: tuple[ByTask, ...]

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], lost: Sequence[Lost]) -> TaskAttempts:
        def solved(more: Sequence[Outcome] = ()) -> ByTask:
            return by_task([*outcomes, *more], lambda outcome: outcome.success)

        sides = [solved([one.outcome(success) for one in lost]) for success in (False, True)] if lost else []
        return cls(solved(), tuple(sides))

    @property
    def fewest(self) -> int:
        """How many attempts every task has, at least."""
        return min((len(values) for side in (self.known, *self.sides) for values in side.values()), default=0)


def report(
    outcomes: Sequence[Outcome], *, lost: Sequence[Lost] = (), level: float = 0.95, sequential: bool = False
) -> SuccessReport:
    """The report.

    `sequential`: the number of episodes was decided by looking at them. Rates then have
    intervals that hold at any time; other means have none.
    """
    solved = TaskAttempts.of(outcomes, lost)
    steps = ladder([solved.fewest])
    failed = [outcome for outcome in outcomes if outcome.success is False]
    errors: Counter[str] = Counter()
    for outcome in outcomes:
        errors.update(outcome.errors)
    turns = sum(outcome.turns for outcome in outcomes)

    def average(value: Callable[[Outcome], float | None]) -> Measure:
        values = by_task(outcomes, value)
        found = means(values)
        interval = None if sequential else mean_interval(found, level)
        return Measure(_mean(found), interval, sum(map(len, values.values())))

    def passes(estimate: Callable[[int, int, int], float]) -> dict[int, Measure]:
        def at(k: int) -> Callable[[ByTask], list[float]]:
            return lambda side: [estimate(k, int(sum(values)), len(values)) for values in side.values()]

        return {k: _rate(solved, level, sequential, at(k)) for k in steps}

    return SuccessReport(
        tasks=len({outcome.task for outcome in outcomes}),
        episodes=len(outcomes),
        unknown=sum(outcome.success is None for outcome in outcomes),
        lost=len(lost),
        lost_by_task=dict(Counter(one.task for one in lost)),
        success=_rate(solved, level, sequential),
        reward=average(lambda outcome: outcome.reward),
        turns=average(lambda outcome: outcome.turns),
        prompt_tokens=average(lambda outcome: outcome.prompt_tokens),
        completion_tokens=average(lambda outcome: outcome.completion_tokens),
        pass_at=passes(pass_at),
        pass_all=passes(pass_all),
        failures=dict(Counter(outcome.stop or "unknown" for outcome in failed).most_common()),
        errors=dict(errors.most_common()),
        invalid_rate=sum(errors.values()) / turns if turns else None,
        mistakes=_mistakes(outcomes, level, sequential),
        types=_types(outcomes, lost, level, sequential),
    )


def _mistakes(outcomes: Sequence[Outcome], level: float, sequential: bool) -> dict[str, Measure]:
    """The rates of the mistakes that were looked for."""

    def made(reason: str) -> dict[str, list[float]]:
        return by_task(outcomes, lambda one: None if one.mistakes is None else one.mistakes.get(reason, 0) > 0)

    reasons = dict.fromkeys(reason for outcome in outcomes for reason in outcome.mistakes or ())
    return {reason: _rate(TaskAttempts(made(reason), ()), level, sequential) for reason in reasons}


def _types(outcomes: Sequence[Outcome], lost: Sequence[Lost], level: float, sequential: bool) -> dict[str, Measure]:
    played: dict[str, list[Outcome]] = {}
    missing: dict[str, list[Lost]] = {}
    for outcome in outcomes:
        if outcome.type is not None:
            played.setdefault(outcome.type, []).append(outcome)
    for one in lost:
        if one.type is not None:
            missing.setdefault(one.type, []).append(one)
    parts = {name: TaskAttempts.of(played.get(name, []), missing.get(name, [])) for name in sorted({*played, *missing})}
    return {name: _rate(solved, level, sequential) for name, solved in parts.items()}


def _rate(
    solved: TaskAttempts, level: float, sequential: bool, values: Callable[[ByTask], list[float]] = means
) -> Measure:
    known, episodes = values(solved.known), sum(map(len, solved.known.values()))
    interval = _interval(solved.known, values, level, sequential)
    for side in solved.sides:
        bound = _interval(side, values, level, sequential)
        if interval is not None and bound is not None:
            interval = replace(interval, low=min(interval.low, bound.low), high=max(interval.high, bound.high))
    if interval is not None and solved.sides:
        interval = replace(interval, method=f"{interval.method}; {BOUNDED}")
    return Measure(_mean(known), interval, episodes)


def _interval(side: ByTask, values: Callable[[ByTask], list[float]], level: float, sequential: bool) -> Interval | None:
    found = values(side)
    if sequential:
        return confidence_sequence(found, level) if found else None
    return rate_interval(found, sum(map(len, side.values())), level)


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _plain(value: Any) -> Any:
    if isinstance(value, Measure):
        return value.to_json()
    return {str(key): _plain(part) for key, part in value.items()} if isinstance(value, dict) else value
