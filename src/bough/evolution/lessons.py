"""What members learn from: records on file in an order of each member's own, or groups that members play themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bough.config.training import TrainingConfig
from bough.digest import derived_seed
from bough.methods.base import Example
from bough.training.source import PlannedSource

# More updates than any member makes: its share of the data comes again and again.
ENDLESS = 2**31


@dataclass(frozen=True)
class Pupil:
    """A member that learns: its settings, and how many updates it has made."""

    config: TrainingConfig
    step: int


class Lessons(Protocol):
    """Gives every member its batches. `tokens` were sampled for them so far."""

    tokens: int

    def batches(self, pupils: Mapping[str, Pupil], update: int) -> dict[str, Sequence[Example]]:
        """The batch of each member for the run's update number `update`; a member without one learns nothing."""
        ...


class RecordLessons:
    """Records in the order of a plan, shuffled for each member by its name."""

    def __init__(self, examples: Sequence[Example], seed: int) -> None:
        self.examples, self.seed, self.tokens = examples, seed, 0
        self._sources: dict[str, PlannedSource] = {}

    def batches(self, pupils: Mapping[str, Pupil], update: int) -> dict[str, Sequence[Example]]:  # noqa: ARG002
        self._sources = {
            name: self._sources.get(name) or self._source(name, pupil.config) for name, pupil in pupils.items()
        }
        return {name: self._sources[name].batch(pupil.step).examples for name, pupil in pupils.items()}

    def _source(self, name: str, config: TrainingConfig) -> PlannedSource:
        optimizer = config.optimizer.model_copy(update={"max_steps": ENDLESS})
        ordered = config.model_copy(update={"seed": derived_seed(self.seed, name), "optimizer": optimizer})
        return PlannedSource(self.examples, ordered)
