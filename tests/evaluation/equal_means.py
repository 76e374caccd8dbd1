"""Pairs of models with the same mean success over all tasks that are alike on no single task.

Each gives the success rates of both on `tasks` tasks that are drawn anew.
"""

from collections.abc import Callable

import numpy as np

from bough.evaluation.intervals import Floats

Rates = Callable[[np.random.Generator, int], tuple[Floats, Floats]]


def rare_losses(rng: np.random.Generator, tasks: int) -> tuple[Floats, Floats]:
    """Much worse on one task in ten, a little better on the others."""
    hard = rng.random(tasks) < 0.1
    return np.where(hard, 0.95, 0.5), np.where(hard, 0.05, 0.6)


def all_or_nothing(rng: np.random.Generator, tasks: int) -> tuple[Floats, Floats]:
    """The first solves one task in ten, always; the second solves every task one time in ten."""
    return (rng.random(tasks) < 0.1).astype(float), np.full(tasks, 0.1)


def sure_and_unsure(rng: np.random.Generator, tasks: int) -> tuple[Floats, Floats]:
    """Both solve half of all attempts; the first knows which tasks it can do."""
    return np.where(rng.random(tasks) < 0.5, 0.9, 0.1), np.full(tasks, 0.5)


def other_spread(rng: np.random.Generator, tasks: int) -> tuple[Floats, Floats]:
    """One mean, a wide spread of difficulty against a narrow one."""
    return rng.beta(4, 16, size=tasks), rng.beta(0.3, 1.2, size=tasks)
