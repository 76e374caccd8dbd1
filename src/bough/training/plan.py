"""Which examples are trained in which step: the whole run laid out before it begins.

The plan is a function of the data and the seed alone. So the learning rate knows how many
steps will come, curriculum or not, and a run that was killed finds its place by the
number of the step.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True)
class Curriculum:
    """Easy examples first: the share of the data grows from `start_ratio` to all over `warmup_epochs`."""

    start_ratio: float
    warmup_epochs: int

    def ratio(self, epoch: int) -> float:
        return min(1.0, self.start_ratio + (1 - self.start_ratio) * epoch / self.warmup_epochs)


@dataclass(frozen=True)
class Step:
    """The examples of one optimizer step."""

    epoch: int
    examples: list[int]


def plan(
    clusters: Sequence[str],
    difficulty: Sequence[float],
    *,
    batch_size: int,
    num_epochs: float,
    max_steps: int | None = None,
    curriculum: Curriculum | None = None,
    seed: int = 0,
) -> list[Step]:
    """The steps of a run over examples 0, 1, ….

    `clusters[i]` names what example i shares tokens with (its episode): examples of one
    cluster stay together, and the clusters are shuffled anew each epoch. `difficulty` orders
    the curriculum, lowest first. `num_epochs` may be a fraction; `max_steps`, where
    given, decides alone how many steps there are.
    """
    if max_steps is not None:
        epochs: Iterator[int] = count()
    else:
        epochs = iter(range(-int(-num_epochs // 1)))
    steps: list[Step] = []
    for epoch in epochs if clusters else ():
        chosen = _easiest(difficulty, curriculum.ratio(epoch) if curriculum else 1.0)
        order = _in_clusters(chosen, clusters, random.Random(f"{seed}/{epoch}"))  # noqa: S311 (an order, not a secret)
        batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
        if max_steps is None and epoch + 1 > num_epochs:
            batches = batches[: max(1, round(len(batches) * (num_epochs - epoch)))]
        steps += [Step(epoch, batch) for batch in batches]
        if max_steps is not None and len(steps) >= max_steps:
            return steps[:max_steps]
    return steps


def _easiest(difficulty: Sequence[float], ratio: float) -> list[int]:
    """The easiest share of the examples, at least one, in their own order."""
    kept = max(1, round(len(difficulty) * ratio))
    return sorted(sorted(range(len(difficulty)), key=lambda i: (difficulty[i], i))[:kept])


def _in_clusters(chosen: list[int], clusters: Sequence[str], chance: random.Random) -> list[int]:
    members: dict[str, list[int]] = {}
    for i in chosen:
        members.setdefault(clusters[i], []).append(i)
    groups = list(members.values())
    chance.shuffle(groups)
    return [i for group in groups for i in group]
