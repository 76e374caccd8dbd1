"""How old the weights are that sampled a call, in batches, and which calls are too old to learn from.

The engine names weights `step-12`, after the optimizer steps before them; a call during
which they changed has the first and the last name, `step-12..step-14`. Its age counts from the first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from bough.types import Call, Group, Turn


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
