"""The report of one model: how often it succeeds and how sure that is, what it costs, and how it fails.

A lost episode could have been a success or a failure. Every success rate is the mean over
the episodes that ended; its interval reaches from the lower end with all lost episodes as
failures to the upper end with all of them as successes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import comb
from statistics import variance
from typing import Any

from bough.evaluation.intervals import (
    Interval,
    confidence_sequence,
    mean_interval,
    rate_interval,
    student_quantile,
    wilson,
)
from bough.evaluation.results import Lost, ModelResult, Outcome, by_task, mean, means

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


Sides = list[ByTask]


def task_attempts(outcomes: Sequence[Outcome], lost: Sequence[Lost], *, families: bool = True) -> Sides:
    """The attempts at each task, 1 for a success: those that ended, and with the lost ones as failures, as successes.

    With `families`, the attempts at all tasks of a family are counted as those at one task.
    """
    assumed = [[], *([one.outcome(success) for one in lost] for success in (False, True) if lost)]
    return [by_task([*outcomes, *more], lambda outcome: outcome.success, families=families) for more in assumed]


def report(
    outcomes: Sequence[Outcome], *, lost: Sequence[Lost] = (), level: float = 0.95, sequential: bool = False
) -> SuccessReport:
    """The report.

    `sequential`: the number of episodes was decided by looking at them. Rates then have
    intervals that hold at any time; other means have none.
    """
    attempts = task_attempts(outcomes, lost, families=False)
    units = {one.task: one.unit for one in (*outcomes, *(missing.outcome(False) for missing in lost))}
    steps = ladder(min((len(values) for side in attempts for values in side.values()), default=0))
    failed = [outcome for outcome in outcomes if outcome.success is False]
    errors: Counter[str] = Counter()
    for outcome in outcomes:
        errors.update(outcome.errors)
    turns = sum(outcome.turns for outcome in outcomes)

    def average(value: Callable[[Outcome], float | None]) -> Measure:
        values = by_task(outcomes, value)
        found = means(values)
        interval = None if sequential else mean_interval(found, level)
        return Measure(mean(found) if found else None, interval, sum(map(len, values.values())))

    def passes(estimate: Callable[[int, int, int], float]) -> dict[int, Measure]:
        def at(k: int, side: ByTask) -> list[float]:
            found: ByTask = {}
            for task, values in side.items():
                found.setdefault(units[task], []).append(estimate(k, int(sum(values)), len(values)))
            return means(found)

        return {k: _rate(attempts, level, sequential, partial(at, k)) for k in steps}

    def made(reason: str) -> ByTask:
        return by_task(outcomes, lambda one: None if one.mistakes is None else one.mistakes.get(reason, 0) > 0)

    def of_type(kind: str) -> Sides:
        return task_attempts([one for one in outcomes if one.type == kind], [one for one in lost if one.type == kind])

    reasons = dict.fromkeys(reason for outcome in outcomes for reason in outcome.mistakes or ())
    named = {one.type for one in outcomes} | {one.type for one in lost}
    types = sorted(name for name in named if name is not None)
    return SuccessReport(
        tasks=len({outcome.task for outcome in outcomes}),
        episodes=len(outcomes),
        unknown=sum(outcome.success is None for outcome in outcomes),
        lost=len(lost),
        lost_by_task=dict(Counter(one.task for one in lost)),
        success=_rate(task_attempts(outcomes, lost), level, sequential),
        reward=average(lambda outcome: outcome.reward),
        turns=average(lambda outcome: outcome.turns),
        prompt_tokens=average(lambda outcome: outcome.prompt_tokens),
        completion_tokens=average(lambda outcome: outcome.completion_tokens),
        pass_at=passes(pass_at),
        pass_all=passes(pass_all),
        failures=dict(Counter(outcome.stop or "unknown" for outcome in failed).most_common()),
        errors=dict(errors.most_common()),
        invalid_rate=sum(errors.values()) / turns if turns else None,
        mistakes={reason: _rate([made(reason)], level, sequential) for reason in reasons},
        types={kind: _rate(of_type(kind), level, sequential) for kind in types},
    )


def reports(models: Sequence[ModelResult], level: float, sequential: bool) -> dict[str, Any]:
    """The report of each model, as JSON."""
    return {
        model.name: report(model.outcomes, lost=model.lost, level=level, sequential=sequential).to_json()
        for model in models
    }


def _rate(sides: Sides, level: float, sequential: bool, values: Callable[[ByTask], list[float]] = means) -> Measure:
    intervals = []
    for side in sides:
        found = values(side)
        if sequential:
            intervals.append(confidence_sequence(found, level) if found else None)
        else:
            intervals.append(rate_interval(found, sum(map(len, side.values())), level))
    interval = intervals[0]
    for bound in intervals[1:]:
        if interval is not None and bound is not None:
            interval = replace(interval, low=min(interval.low, bound.low), high=max(interval.high, bound.high))
    if interval is not None and len(sides) > 1:
        interval = replace(interval, method=f"{interval.method}; {BOUNDED}")
    known = values(sides[0])
    return Measure(mean(known) if known else None, interval, sum(map(len, sides[0].values())))


def _plain(value: Any) -> Any:
    if isinstance(value, Measure):
        return value.to_json()
    return {str(key): _plain(part) for key, part in value.items()} if isinstance(value, dict) else value


# Several attempts at one task: is one of k good enough (pass@k), are all of k good (pass^k)?
# Both are estimated from all attempts there are, without bias: over every choice of k of them, the share in which
# one, or all, succeed.


def pass_at(k: int, successes: int, attempts: int) -> float:
    """The chance that at least one of `k` attempts succeeds."""
    return 1.0 - comb(attempts - successes, k) / comb(attempts, k)


def pass_all(k: int, successes: int, attempts: int) -> float:
    """The chance that `k` attempts all succeed."""
    return comb(successes, k) / comb(attempts, k)


def ladder(most: int) -> list[int]:
    """Which k to report: 2, 4, 8, … up to the number of attempts that every task has, and that number itself."""
    return sorted({*(2**power for power in range(1, most.bit_length())), most}) if most > 1 else []


# The success of a training procedure that was run with several seeds, and how sure that is.
# Two things vary from run to run: the training (other data, other order, other samples) and the tasks that happen to
# be in the evaluation. The interval is made twice, once from the spread between seeds and once from the spread
# between tasks, and reaches from the lowest to the highest end. With one seed there is only the second, which says
# nothing about other seeds.
# Between k seeds it is Wilson's interval for as many independent tasks as would have shown the same spread between
# the seeds' rates, with Student's t for k - 1 degrees of freedom. Away from 0 and 1 this is the usual mean ± t·s/√k;
# it stays between 0 and 1, and it is never narrower than for independent tasks, because three seeds that agree by
# chance are no proof that all seeds agree.


def rate_of(run: ModelResult) -> float | None:
    """The success rate of one run: the mean over its tasks."""
    rates = means(by_task(run.outcomes, lambda outcome: outcome.success))
    return mean(rates) if rates else None


def across_seeds(runs: Sequence[ModelResult], level: float = 0.95) -> Measure:
    """The mean of the seeds' success rates with its interval; every seed has the same weight."""
    rates = [rate for run in runs if (rate := rate_of(run)) is not None]
    episodes = sum(outcome.success is not None for run in runs for outcome in run.outcomes)
    lost = any(run.lost for run in runs)
    sides = [[run.assuming(success) for run in runs] for success in (False, True)] if lost else []
    found = [interval for side in (runs, *sides) for interval in _intervals(side, level)]
    if not rates or not found:
        return Measure(None, None, episodes)
    method = "by seeds and by tasks, the wider" if len(rates) > 1 else "one seed, by tasks"
    low, high = min(one.low for one in found), max(one.high for one in found)
    interval = Interval(low, high, level, f"{method}; {BOUNDED}" if lost else method)
    return Measure(mean(rates), interval, episodes)


def between_seeds(rates: Sequence[float], tasks: int, level: float = 0.95) -> Interval:
    """The interval of the mean of at least two seeds' rates, which `tasks` tasks in all have given."""
    count, rate = len(rates), mean(rates)
    spread = variance(rates)
    effective = min(rate * (1.0 - rate) * count / spread, tasks) if spread > 0.0 else tasks
    critical = student_quantile(0.5 + level / 2.0, count - 1)
    low, high = wilson(rate * effective, effective, level, critical)
    return Interval(low, high, level, "Wilson, tasks clustered by seed")


def _intervals(runs: Sequence[ModelResult], level: float) -> list[Interval]:
    found = []
    known = [by_task(run.outcomes, lambda outcome: outcome.success) for run in runs]
    rates = [mean(values) for tasks in known if (values := means(tasks))]
    if len(rates) > 1:
        found.append(between_seeds(rates, sum(map(len, known)), level))
    # Tasks with one name in two seeds are one task only if their content is the same.
    outcomes = [
        outcome.model_copy(update={"task": f"{outcome.task} {outcome.digest}"})
        for run in runs
        for outcome in run.outcomes
    ]
    tasks = by_task(outcomes, lambda outcome: outcome.success)
    by_tasks = rate_interval(means(tasks), sum(map(len, tasks.values())), level)
    return found + ([by_tasks] if by_tasks is not None else [])
