"""Which examples are trained in which step.

How many steps there are is known before the first, curriculum or not, so the learning
rate knows what will come. The order is a function of the data and the seed (and, for an
adaptive curriculum, of how each epoch went), so a run that was killed finds its place by
the number of the step.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Curriculum:
    """Easy examples first: the share of the data grows from `start_ratio` to all over `warmup_epochs`.

    With `success`, a share between 0 and 1, the data grows only after an epoch in which the
    policy did at least that well (`Plan.end_epoch`); until then the same share comes again. The
    number of steps is that of a curriculum which never waits.
    """

    start_ratio: float
    warmup_epochs: int
    success: float | None = None

    def ratio(self, level: int) -> float:
        return min(1.0, self.start_ratio + (1 - self.start_ratio) * level / self.warmup_epochs)


@dataclass(frozen=True)
class PlannedStep:
    """The examples of one optimizer step."""

    epoch: int
    examples: list[int]


class Plan:
    """The steps of a run over examples 0, 1, ….

    `clusters[i]` names what example i shares tokens with (its episode): examples of one
    cluster stay together, and the clusters are shuffled again in each epoch. `difficulty` orders
    the curriculum, lowest first. `num_epochs` may be a fraction; `max_steps`, where
    given, decides alone how many steps there are.

    `levels`, the curriculum's level in each epoch so far, is all there is to remember.
    """

    def __init__(
        self,
        clusters: Sequence[Hashable],
        difficulty: Sequence[float],
        *,
        batch_size: int,
        num_epochs: float,
        max_steps: int | None = None,
        curriculum: Curriculum | None = None,
        seed: int = 0,
        levels: Sequence[int] = (0,),
    ) -> None:
        self.clusters, self.difficulty, self.batch_size, self.seed = clusters, difficulty, batch_size, seed
        self.curriculum = curriculum
        self.levels = list(levels)
        self.num_steps = self._count(num_epochs, max_steps)
        self._steps: list[PlannedStep] = []
        self._laid_out = 0

    def __len__(self) -> int:
        return self.num_steps

    def __getitem__(self, number: int) -> PlannedStep:
        """Step `number`, counted from 0. An adaptive curriculum must know how the epochs before it went."""
        if not 0 <= number < self.num_steps:
            raise IndexError(number)
        while number >= len(self._steps):
            self._lay_out()
        return self._steps[number]

    def laid_out(self, number: int) -> bool:
        """Whether step `number` is fixed already: laying out its epoch needs to know how the one before went."""
        return 0 <= number < min(len(self._steps), self.num_steps)

    def ends_epoch(self, number: int) -> bool:
        """Whether step `number` is the last of its epoch. The last of all need not be: a run may be made longer."""
        return self[number] is self._steps[-1] and self._laid_out == self[number].epoch + 1

    def end_epoch(self, success: float) -> None:
        """How well the epoch that has just ended went; decides the next one's share."""
        assert self._laid_out == len(self.levels), "an epoch ends once"
        enough = self.curriculum is None or self.curriculum.success is None or success >= self.curriculum.success
        self.levels.append(self.levels[-1] + enough)

    def _count(self, num_epochs: float, max_steps: int | None) -> int:
        if not self.clusters:
            return 0
        if max_steps is not None:
            return max_steps
        whole = int(num_epochs)
        lengths = [self._length(epoch) for epoch in range(whole + 1)]
        return sum(lengths[:whole]) + (
            max(1, round(lengths[whole] * (num_epochs - whole))) if num_epochs > whole else 0
        )

    def _length(self, level: int) -> int:
        return -(-self._num_kept(level) // self.batch_size)

    def _lay_out(self) -> None:
        epoch = self._laid_out
        if epoch == len(self.levels):  # not adaptive: the share grows
            self.end_epoch(1.0)
        order = _in_clusters(self._share(self.levels[epoch]), self.clusters, random.Random(f"{self.seed}/{epoch}"))  # noqa: S311
        batches = [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        self._steps += [PlannedStep(epoch, batch) for batch in batches]
        self._laid_out += 1

    def _share(self, level: int) -> list[int]:
        """The easiest share of the examples, in their own order."""
        count, kept = len(self.difficulty), self._num_kept(level)
        if kept == count:
            return list(range(count))
        return sorted(sorted(range(count), key=lambda i: (self.difficulty[i], i))[:kept])

    def _num_kept(self, level: int) -> int:
        ratio = self.curriculum.ratio(level) if self.curriculum else 1.0
        return max(1, round(len(self.difficulty) * ratio))


def _in_clusters(chosen: list[int], clusters: Sequence[Hashable], rng: random.Random) -> list[int]:
    members: dict[Hashable, list[int]] = {}
    for i in chosen:
        members.setdefault(clusters[i], []).append(i)
    groups = list(members.values())
    rng.shuffle(groups)
    return [i for group in groups for i in group]
