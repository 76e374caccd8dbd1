"""Tasks by seed: most other libraries know a task only as the seed of a reset."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from bough.types import Task


def seeded_tasks(split: str, seed: int, data: Mapping[str, JsonValue]) -> Iterator[Task]:
    """An endless series of tasks that differ in their seed; each split has its own seeds."""
    rng = random.Random(f"{split} {seed}")  # noqa: S311  no secret
    number = 0
    while True:
        yield Task(id=f"{split}-{seed}-{number}", seed=rng.randrange(2**31), data=dict(data))
        number += 1
