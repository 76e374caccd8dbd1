"""The report of one model: how often it succeeds and how sure that is, what it costs, and how it fails."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bough.config.curation import Reason
from bough.evaluation.attempts import ladder, pass_all, pass_at
from bough.evaluation.intervals import Interval, mean_interval, rate_interval
from bough.evaluation.outcomes import MISTAKES, Outcome, by_task, means
from bough.evaluation.sequential import confidence_sequence


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
class Report:
    """Everything about one model.

    Failures are counted by how the episode ended, errors by kind over all turns; a
    mistake's rate is the share of episodes in which it was made at all.
    """

    tasks: int
    episodes: int
    unknown: int
    lost: int
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


def report(outcomes: Sequence[Outcome], *, lost: int = 0, level: float = 0.95, sequential: bool = False) -> Report:
    """The report.

    `sequential`: the number of episodes was decided by looking at them. Rates then have
    intervals that hold at any time; other means have none.
    """
    solved = by_task(outcomes, lambda outcome: outcome.success)
    counts = {task: (int(sum(values)), len(values)) for task, values in solved.items()}
    steps = ladder(tried for _, tried in counts.values())
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
        return {k: _rate([estimate(k, *count) for count in counts.values()], solved, level, sequential) for k in steps}

    return Report(
        tasks=len({outcome.task for outcome in outcomes}),
        episodes=len(outcomes),
        unknown=sum(outcome.success is None for outcome in outcomes),
        lost=lost,
        success=_rate(means(solved), solved, level, sequential),
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
        types=_types(outcomes, level, sequential),
    )


def _mistakes(outcomes: Sequence[Outcome], level: float, sequential: bool) -> dict[str, Measure]:
    def made(kind: Reason) -> dict[str, list[float]]:
        return by_task(outcomes, lambda outcome: None if outcome.mistakes is None else kind in outcome.mistakes)

    return {kind: _rate(means(made(kind)), made(kind), level, sequential) for kind in MISTAKES}


def _types(outcomes: Sequence[Outcome], level: float, sequential: bool) -> dict[str, Measure]:
    names = sorted({outcome.type for outcome in outcomes if outcome.type is not None})
    parts = {
        name: by_task([outcome for outcome in outcomes if outcome.type == name], lambda outcome: outcome.success)
        for name in names
    }
    return {name: _rate(means(solved), solved, level, sequential) for name, solved in parts.items()}


def _rate(values: list[float], solved: dict[str, list[float]], level: float, sequential: bool) -> Measure:
    episodes = sum(map(len, solved.values()))
    if sequential:
        return Measure(_mean(values), confidence_sequence(values, level) if values else None, episodes)
    return Measure(_mean(values), rate_interval(values, episodes, level), episodes)


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _plain(value: Any) -> Any:
    if isinstance(value, Measure):
        return value.to_json()
    return {str(key): _plain(part) for key, part in value.items()} if isinstance(value, dict) else value
