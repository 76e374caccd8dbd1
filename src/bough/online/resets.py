"""Recorded episodes that groups of attempts start in the middle of.

A policy that never gets near the goal learns nothing there. Replaying a recorded episode up to
a round takes it to a state from which it may succeed; what is replayed is context and is not trained.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from bough.environments.base import Environment
from bough.environments.own_agent import OwnAgent
from bough.environments.tasks import digest
from bough.errors import InputError
from bough.rollouts.episode import Replayed
from bough.trajectories.reader import read
from bough.types import Task, Trajectory


class Resets:
    """Chooses which task numbers start from a recorded state, and from which: the same for the same seed."""

    def __init__(self, records: Sequence[Trajectory], share: float, seed: int, max_turns: int | None = None) -> None:
        self.records, self.share, self.seed, self.max_turns = records, share, seed, max_turns

    @classmethod
    def load(
        cls,
        file: Path,
        environment_class: type[Environment],
        share: float,
        seed: int,
        *,
        held_out: Sequence[Task] = (),
        max_turns: int | None = None,
    ) -> Resets:
        """The episodes of a file that have a state to start from. InputError if there are none.

        `max_turns` is the limit of an episode if it is not the environment's: at least one turn is left to play.

        InputError also if one is of a held-out task: what is measured there would no longer be held out.
        """
        if issubclass(environment_class, OwnAgent):
            raise InputError("--reset-file needs an environment that can be replayed, not an agent of your own")
        records = [one for one in read(file) if isinstance(one, Trajectory) and _usable(one, environment_class.name)]
        known = set(map(_known, held_out))
        if leaked := next((one for one in records if _known(one.task) in known), None):
            raise InputError(
                f"{file}: {leaked.id} is an episode of the held-out task {leaked.task.id}; held-out tasks must not be "
                "trained on. Record episodes of the training split, or choose another --eval-split"
            )
        if not records:
            raise InputError(f"{file}: it has no episode of this environment with two or more turns to start in")
        if (limit := max_turns or environment_class.max_turns) < 2:
            raise InputError("--reset-file replays a turn or more, so --max-turns must be at least 2")
        return cls(records, share, seed, limit)

    def of(self, number: int) -> Replayed | None:
        """What the attempts at the task with this number start with; None if they start at the beginning."""
        rng = random.Random(f"{self.seed} reset {number}")  # noqa: S311  no secret
        if rng.random() >= self.share:
            return None
        record = rng.choice(self.records)
        end = min(len(record.turns), self.max_turns or len(record.turns))
        return Replayed(record, rng.randrange(1, end))


def _known(task: Task) -> str:
    """What is the same for a task as it is drawn and as it was recorded, with the environment's name."""
    return digest(task.model_copy(update={"environment": None}))


def _usable(record: Trajectory, environment: str) -> bool:
    played_here = record.task.environment in (None, environment)
    return played_here and len(record.turns) > 1 and all(turn.prompt is None for turn in record.turns)
