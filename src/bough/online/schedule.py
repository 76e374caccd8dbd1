"""Which tasks are started when, and when a batch is complete.

Tasks have numbers, in the order in which they are first started. Every group that turns out to
give no training signal makes room for one more task.

With `max_staleness` 0 a batch takes the first `size` groups by number that give a training signal, so
its tasks follow from the outcomes alone, whichever episode ends first. If slots would be idle,
tasks are also started early: as many as make `size` groups with a training signal at the share of
such groups in earlier batches. Without that, replacements come in one wave after another, each a
fraction of the one before and as long as the longest episode. Started tasks that the batch does
not need after all are a surplus: they are started again for the next batch, with its weights.

With `max_staleness` N, up to N further batches are played ahead, and a batch takes the groups
that are complete, the oldest first.

`resample` limits the tasks that are tried for a batch. If none gives a training signal, as
many are tried again, `DRAWS` times in all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from bough.ledger import Ledger
from bough.training.method import GroupExample
from bough.types import Call, Group, Turn

# What an earlier batch counts in the share of groups with a training signal, for each batch since.
DECAY = 0.5
# Draws without a single group to learn from: the first may be bad luck, this many in a row are not.
DRAWS = 4

Verdict = Literal["wait", "complete", "nothing", "lost"]


@dataclass(frozen=True)
class Outcome:
    """The result of one task: its group, as played and as trained on, and its example if it gives a training signal.

    `lost` has the errors of lost episodes by id; there is no group if all of them were. `reason`
    says why the group gives no training signal, `age` is that of the oldest call that is trained on, and
    `calls` counts the calls of the group.
    """

    number: int
    played: Group | None
    lost: dict[str, str]
    group: Group | None = None
    example: GroupExample | None = None
    reason: str = "lost"
    age: int = 0
    calls: Ledger = field(default_factory=lambda: Ledger("calls"))

    @property
    def teaches(self) -> bool:
        return self.example is not None

    @property
    def num_finished(self) -> int:
        return len(self.played.attempts) if self.played else 0

    @property
    def num_lost(self) -> int:
        return len(self.lost)


@dataclass
class Pace:
    """Numbers of tasks that are open (started), again (to be started once more) and what has ended.

    `surplus` are tasks that were started for the last batch and that it did not need.
    """

    size: int
    budget: int
    max_staleness: int = 0
    next_number: int = 0
    open: set[int] = field(default_factory=set)
    again: list[int] = field(default_factory=list)
    ended: list[Outcome] = field(default_factory=list)
    surplus: list[int] = field(default_factory=list)
    _draws: int = 1
    _tried: float = 0.0  # of earlier batches, with `DECAY`
    _taught: float = 0.0
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

    def starts(self, idle: int = 0, per_task: int = 1) -> Iterator[int]:
        """The tasks to start now, where `idle` episodes more could be in flight and each task has `per_task`."""
        while self._has_room() or (idle > 0 and self._has_room_early()):
            idle -= per_task
            if self.again:
                number = self.again.pop(0)
            else:
                number = self.next_number
                self.next_number += 1
            self.open.add(number)
            yield number

    def end(self, outcome: Outcome) -> None:
        """A started task has ended."""
        self.open.remove(outcome.number)
        self.ended.append(outcome)

    def verdict(self) -> Verdict:
        """Whether the batch is complete, gives no training signal, or too much was lost; else more must end first."""
        settled = self._settled()
        teaching = sum(one.teaches for one in settled)
        if self._is_broken(settled):
            return "lost"
        if teaching >= self.size:
            return "complete"
        if len(settled) < self._draws * self.budget:
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
    def last_draw(self) -> list[Outcome]:
        """What has ended of the tasks that were tried last."""
        return self._settled()[(self._draws - 1) * self.budget :]

    def take(self) -> tuple[list[Outcome], list[Outcome]]:
        """The groups of the batch, and all that was played for it, by number.

        Groups beyond the batch stay for the next one: the youngest, for the others may then be too old.
        With `max_staleness` 0 none may stay, and `surplus` names the tasks of those groups.
        """
        chosen, used = self._take_settled() if not self.max_staleness else self._take_oldest()
        self._tried = DECAY * self._tried + len(used)
        self._taught = DECAY * self._taught + len(chosen)
        self._lead -= 1
        return chosen, used

    def _take_settled(self) -> tuple[list[Outcome], list[Outcome]]:
        used = self._settled()
        taken = {one.number for one in used}
        self.surplus = sorted({*self.open, *(one.number for one in self.ended)} - taken)
        self.open, self.ended = set(), []
        again = [*self.again, *self.surplus]
        while self.next_number - 1 in again:  # as if they had never been started
            self.next_number -= 1
            again.remove(self.next_number)
        self.again = sorted(again)
        return [one for one in used if one.teaches], used

    def _take_oldest(self) -> tuple[list[Outcome], list[Outcome]]:
        by_number = sorted(self.ended, key=lambda one: one.number)
        oldest_first = sorted((one for one in by_number if one.teaches), key=lambda one: -one.age)
        left = {one.number for one in oldest_first[self.size :]}
        used = [one for one in by_number if one.number not in left]
        self.ended = [one for one in by_number if one.number in left]
        return [one for one in used if one.teaches], used

    def _settled(self) -> list[Outcome]:
        """What decides about the batch: all that has ended.

        With `max_staleness` 0 it is what a loop without any concurrency would have played by now: the
        tasks before the first that is open, up to the one that makes the batch complete.
        """
        if self.max_staleness:
            return self.ended
        settled, teaching = list[Outcome](), 0
        first_open = min(self.open, default=self.next_number)
        for one in sorted(self.ended, key=lambda one: one.number):
            if one.number > first_open or teaching == self.size:
                break
            settled.append(one)
            teaching += one.teaches
        return settled

    @property
    def _num_teaching(self) -> int:
        return sum(one.teaches for one in self.ended)

    def _is_broken(self, settled: list[Outcome]) -> bool:
        """One task may break its environment; where several lose every episode, it is broken itself."""
        enough = max(2, self.size)
        first = settled if self.max_staleness else settled[:enough]
        return len(first) >= enough and not any(one.num_finished for one in first)

    def _has_room_early(self) -> bool:
        """Whether the open tasks are expected to teach too little to complete the batch."""
        tried = len(self.ended) + len(self.open)
        if self.max_staleness or self._lead < 0 or not self._tried or tried >= self._draws * self.budget:
            return False
        return self._num_teaching + len(self.open) * self._taught / self._tried < self.size

    def _has_room(self) -> bool:
        ahead = self._lead * self.size
        tried = len(self.ended) + len(self.open)
        if self._num_teaching + len(self.open) >= self.size + ahead or tried >= self._draws * self.budget + ahead:
            return False
        # Until one episode is finished, the environment may be broken: nothing that was lost is replaced.
        return any(one.num_finished for one in self.ended) or tried < max(2, self.size) + ahead


# How old the weights are that sampled a call, in batches, and which calls are too old to learn from.
# The engine names weights `step-12`, after the optimizer steps before them; a call during which they changed has the
# first and the last name, `step-12..step-14`. Its age counts from the first.


@dataclass(frozen=True)
class Ages:
    """Ages of calls in batch `batch`, where each batch has `updates` optimizer steps."""

    batch: int
    updates: int
    max_staleness: int

    def of(self, call: Call) -> int:
        """Batches between the weights that sampled the first token and those that learn from it."""
        found = re.match(r"step-(\d+)", call.policy or "")
        return self.batch - int(found[1]) // self.updates if found else 0

    def fresh(self, group: Group) -> tuple[Group, int]:
        """The group with the calls that are too old left out of training, and how many those are."""
        num_stale = 0
        attempts = []
        for attempt in group.attempts:
            turns = [self._fresh(turn) for turn in attempt.turns]
            changed = sum(new is not old for new, old in zip(turns, attempt.turns, strict=True))
            attempts.append(attempt.model_copy(update={"turns": turns}) if changed else attempt)
            num_stale += changed
        return (group.model_copy(update={"attempts": attempts}) if num_stale else group), num_stale

    def metrics(self, calls: Sequence[Call]) -> dict[str, float]:
        ages = [self.of(call) for call in calls]
        return {"staleness_mean": fmean(ages), "staleness_max": max(ages)} if ages else {}

    def _fresh(self, turn: Turn) -> Turn:
        stale = turn.trained and turn.call is not None and self.of(turn.call) > self.max_staleness
        return turn.model_copy(update={"trained": False}) if stale else turn
