"""The success of a training procedure that was run with several seeds, and how sure that is.

Two things vary from run to run: the training (other data, other order, other samples) and the
tasks that happen to be in the evaluation. The interval is made twice, once from the spread
between seeds and once from the spread between tasks, and reaches from the lowest to the
highest end. With one seed there is only the second, which says nothing about other seeds.

Between k seeds it is Wilson's interval for as many independent tasks as would have shown the same
spread between the seeds' rates, with Student's t for k - 1 degrees of freedom. Away from 0
and 1 this is the usual mean ± t·s/√k; it stays between 0 and 1, and it is never narrower than for
independent tasks, because three seeds that agree by chance are no proof that all seeds agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import variance

from bough.evaluation.distributions import student_quantile
from bough.evaluation.intervals import Interval, rate_interval, wilson
from bough.evaluation.outcomes import Outcome, by_task, means
from bough.evaluation.results import ModelResult
from bough.evaluation.success import BOUNDED, Measure


def rate_of(run: ModelResult) -> float | None:
    """The success rate of one run: the mean over its tasks."""
    values = means(by_task(run.outcomes, lambda outcome: outcome.success))
    return math.fsum(values) / len(values) if values else None


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
    return Measure(math.fsum(rates) / len(rates), interval, episodes)


def between_seeds(rates: Sequence[float], tasks: int, level: float = 0.95) -> Interval:
    """The interval of the mean of at least two seeds' rates, which `tasks` tasks in all have given."""
    count, rate = len(rates), math.fsum(rates) / len(rates)
    spread = variance(rates)
    effective = min(rate * (1.0 - rate) * count / spread, tasks) if spread > 0.0 else tasks
    critical = student_quantile(0.5 + level / 2.0, count - 1)
    low, high = wilson(rate * effective, effective, level, critical)
    return Interval(low, high, level, "Wilson, tasks clustered by seed")


def _intervals(runs: Sequence[ModelResult], level: float) -> list[Interval]:
    found = []
    known = [by_task(run.outcomes, lambda outcome: outcome.success) for run in runs]
    rates = [math.fsum(values) / len(values) for tasks in known if (values := means(tasks))]
    if len(rates) > 1:
        found.append(between_seeds(rates, sum(map(len, known)), level))
    # Tasks with one name in two seeds are one task only if their content is the same.
    outcomes = [_named_by_content(outcome) for run in runs for outcome in run.outcomes]
    tasks = by_task(outcomes, lambda outcome: outcome.success)
    by_tasks = rate_interval(means(tasks), sum(map(len, tasks.values())), level)
    return found + ([by_tasks] if by_tasks is not None else [])


def _named_by_content(outcome: Outcome) -> Outcome:
    return outcome.model_copy(update={"task": f"{outcome.task} {outcome.digest}"})
