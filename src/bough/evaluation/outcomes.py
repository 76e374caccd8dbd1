"""What one episode came to, without its story: the row that every number of a report is made of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable

from pydantic import Field, FiniteFloat

from bough.config.curation import Reason
from bough.curation.failure_modes import mistakes, rules
from bough.curation.locations import Locations
from bough.environments.tasks import digest
from bough.types import Record, Trajectory

# Where the worlds say what kind of task it is.
TYPE_KEYS = ("type", "task_type", "page", "kind")
NO_PLACES = Locations({})
MISTAKES: tuple[Reason, ...] = ("premature_success", "loop", "wasted_step", "implausible_location")


class Outcome(Record):
    """One episode. A `success` of None is unknown: left out of every rate, and counted.

    `digest` is the task's whole content: two tasks of one name need not be one task.
    `errors` are replies that the world could not act on, `mistakes` those it could but a
    rule finds fault with; both by kind. Results on file from before there were rules have None.
    """

    task: str
    digest: str
    type: str | None = None
    attempt: int = 0
    success: bool | None
    reward: FiniteFloat | None = None
    turns: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    stop: str | None = None
    errors: dict[str, int] = Field({})
    mistakes: dict[str, int] | None = None

    @classmethod
    def of(cls, trajectory: Trajectory, locations: Locations = NO_PLACES) -> Outcome:
        """The outcome of a collected episode, whose name is that of its task, # and its attempt."""
        attempt = trajectory.id.rpartition("#")[2]
        found = Counter(mistake.reason for mistake in mistakes(trajectory, rules(MISTAKES, locations)))
        return cls(
            task=trajectory.task.id,
            digest=digest(trajectory.task),
            type=next((str(trajectory.task.data[key]) for key in TYPE_KEYS if key in trajectory.task.data), None),
            attempt=int(attempt) if attempt.isdecimal() else 0,
            success=trajectory.success,
            reward=trajectory.rewards.get("outcome"),
            turns=len(trajectory.turns),
            prompt_tokens=int(str(trajectory.info.get("prompt_tokens", 0))),
            completion_tokens=int(str(trajectory.info.get("completion_tokens", 0))),
            stop=trajectory.stop,
            errors=dict(sorted(Counter(turn.error for turn in trajectory.turns if turn.error).items())),
            mistakes=dict(sorted(found.items())),
        )


def by_task(outcomes: Iterable[Outcome], value: Callable[[Outcome], float | bool | None]) -> dict[str, list[float]]:
    """The known values of each task, tasks in order of appearance; a task without any is left out."""
    found: dict[str, list[float]] = {}
    for outcome in outcomes:
        known = value(outcome)
        if known is not None:
            found.setdefault(outcome.task, []).append(float(known))
    return found


def means(values: dict[str, list[float]]) -> list[float]:
    """One mean a task: attempts at one task are not independent of each other, tasks are."""
    return [math.fsum(some) / len(some) for some in values.values()]
