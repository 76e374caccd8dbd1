"""Which tasks are started when, and when a batch is complete.

Tasks have numbers, in the order in which they are first started. A batch takes the first
`size` groups by number that teach something. Every group that turns out to teach nothing
makes room for one more task, so no task is started that the batch may not need: with
`max_staleness` 0 the tasks of a batch follow from the outcomes alone, whichever episode
ends first. With `max_staleness` N, up to N further batches are played ahead, and a batch
takes the groups that are complete, the oldest first.

`resample` limits the tasks that are tried for a batch. If all of them teach nothing, as
many are tried again, `DRAWS` times in all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

# Draws without a single group to learn from: the first may be bad luck, this many in a row are not.
DRAWS = 4

Verdict = Literal["wait", "complete", "nothing", "lost"]


class Ended(Protocol):
    """What came of one task."""

    @property
    def number(self) -> int: ...

    @property
    def teaches(self) -> bool: ...

    @property
    def age(self) -> int:
        """Batches since the weights that sampled it; more for the next batch."""

    @property
    def num_finished(self) -> int:
        """Episodes that were played to their end."""

    @property
    def num_lost(self) -> int:
        """Episodes that the environment or the engine broke."""


O = TypeVar("O", bound=Ended)  # noqa: E741


@dataclass
class Pace(Generic[O]):
    """Numbers of tasks that are open (started), again (to be started again after a kill) and what has ended."""

    size: int
    budget: int
    max_staleness: int = 0
    next_number: int = 0
    open: set[int] = field(default_factory=set)
    again: list[int] = field(default_factory=list)
    ended: list[O] = field(default_factory=list)
    _draws: int = 1
    _lead: int = 0  # batches that may be played ahead of the one that is gathered; -1: not even that one

    def restore(self, next_number: int, unfinished: list[int]) -> None:
        """As it was after a batch: `unfinished` tasks were started but are in no batch yet."""
        self.next_number, self.again = next_number, sorted(unfinished)
        self.open, self.ended = set(), []

    @property
    def unfinished(self) -> list[int]:
        """Tasks that were started and are in no batch yet."""
        return sorted({*self.open, *self.again, *(one.number for one in self.ended)})

    def begin(self, num_later: int) -> None:
        """The next batch is wanted now; the run has `num_later` batches after it."""
        self._draws, self._lead = 1, min(self.max_staleness, num_later)

    def starts(self) -> Iterator[int]:
        """The tasks to start now."""
        while self._has_room():
            if self.again:
                number = self.again.pop(0)
            else:
                number = self.next_number
                self.next_number += 1
            self.open.add(number)
            yield number

    def end(self, outcome: O) -> None:
        """A started task has ended."""
        self.open.remove(outcome.number)
        self.ended.append(outcome)

    def verdict(self) -> Verdict:
        """Whether the batch is complete, teaches nothing, or too much was lost; else more must end first."""
        teaching = self._num_teaching
        if teaching >= self.size:
            return "complete"
        if self._is_broken:
            return "lost"
        if len(self.ended) < self._draws * self.budget:
            return "wait"
        if teaching:
            return "complete"
        if sum(one.num_lost for one in self.last_draw) > sum(one.num_finished for one in self.last_draw):
            return "lost"
        if self._draws == DRAWS:
            return "nothing"
        self._draws += 1
        return "wait"

    @property
    def last_draw(self) -> list[O]:
        """What has ended of the tasks that were tried last."""
        return self.ended[(self._draws - 1) * self.budget :]

    def take(self) -> tuple[list[O], list[O]]:
        """The groups of the batch, and all that was played for it, by number.

        Groups beyond the batch stay for the next one: the youngest, for the others may then be too old.
        """
        by_number = sorted(self.ended, key=lambda one: one.number)
        oldest_first = sorted((one for one in by_number if one.teaches), key=lambda one: -one.age)
        left = {one.number for one in oldest_first[self.size :]}
        used = [one for one in by_number if one.number not in left]
        self.ended, self._lead = [one for one in by_number if one.number in left], self._lead - 1
        return [one for one in used if one.teaches], used

    @property
    def _num_teaching(self) -> int:
        return sum(one.teaches for one in self.ended)

    @property
    def _is_broken(self) -> bool:
        """One task may break its environment; where several lose every episode, it is broken itself."""
        return len(self.ended) >= max(2, self.size) and not any(one.num_finished for one in self.ended)

    def _has_room(self) -> bool:
        ahead = self._lead * self.size
        tried = len(self.ended) + len(self.open)
        if self._num_teaching + len(self.open) >= self.size + ahead or tried >= self._draws * self.budget + ahead:
            return False
        # Until one episode is finished, the environment may be broken: nothing that was lost is replaced.
        return any(one.num_finished for one in self.ended) or tried < max(2, self.size) + ahead
