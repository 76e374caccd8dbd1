"""A pool of tasks that are drawn again and again: more often those of which something can be learnt.

GRPO learns from a group only if its attempts differ, which is likeliest at a success rate of one
half. With s successes in n earlier attempts at a task, its weight is

    4 p (1 − p),    p = (s + 1) / (n + 2)

that is 1 for a task that was not tried yet, and never 0. Success rates are updated when a batch
is complete, so that the tasks of a batch do not depend on which episode ends first.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from bough.types import Trajectory


class TaskPool:
    """Says which of `size` tasks has which number."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self.seen: dict[int, tuple[int, int]] = {}  # by task: successes and attempts
        self.chosen: dict[int, int] = {}  # by number: the task

    def choose(self, number: int) -> int:
        """The task of this number: the same whenever it is asked for."""
        if number not in self.chosen:
            rng = random.Random(f"{self.seed} task {number}")  # noqa: S311  no secret
            [self.chosen[number]] = rng.choices(range(self.size), [self.weight(task) for task in range(self.size)])
        return self.chosen[number]

    def weight(self, task: int) -> float:
        successes, attempts = self.seen.get(task, (0, 0))
        p = (successes + 1) / (attempts + 2)
        return 4 * p * (1 - p)

    def note(self, number: int, attempts: Iterable[Trajectory]) -> None:
        """Counts the attempts of a number that is used up. Those of unknown success say nothing."""
        if (task := self.chosen.pop(number, None)) is None:
            return
        known = [attempt.success for attempt in attempts if attempt.success is not None]
        successes, count = self.seen.get(task, (0, 0))
        self.seen[task] = successes + sum(known), count + len(known)

    def forget(self, number: int) -> None:
        """The number was not used: its task is chosen when it is asked for again."""
        self.chosen.pop(number, None)

    def state(self) -> dict[str, Any]:
        """What a run that resumes needs to know."""
        return {
            "seen": [[task, *counts] for task, counts in sorted(self.seen.items())],
            "chosen": sorted(map(list, self.chosen.items())),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.seen = {task: (successes, count) for task, successes, count in state.get("seen", [])}
        self.chosen = dict(state.get("chosen", []))
