"""What members learn from: records on file in an order of each member's own, or groups that members play themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bough.config.training import TrainingConfig
from bough.digest import derived_seed
from bough.evolution.mixture import Mixer
from bough.methods.base import Example
from bough.training.source import PlannedSource

# More updates than any member makes: its share of the data comes again and again.
ENDLESS = 2**31


@dataclass(frozen=True)
class Pupil:
    """A member that learns: its settings, how many updates it has made, and its weights of the data files."""

    config: TrainingConfig
    step: int
    mixture: Mapping[str, float] = field(default_factory=dict)


class Lessons(Protocol):
    """Gives every member its batches. `tokens` were sampled for them so far."""

    tokens: int

    def batches(self, pupils: Mapping[str, Pupil], update: int) -> dict[str, Sequence[Example]]:
        """The batch of each member for the run's update number `update`; a member without one learns nothing."""
        ...


class RecordLessons:
    """Records in the order of a plan, shuffled for each member by its name; of several files, mixed by its weights.

    `examples` are those of each file by its name; a single file needs none.
    """

    def __init__(self, examples: Mapping[str, Sequence[Example]], seed: int) -> None:
        self.examples, self.seed, self.tokens = examples, seed, 0
        self._sources: dict[str, _Plain | _Mixed] = {}

    def batches(self, pupils: Mapping[str, Pupil], update: int) -> dict[str, Sequence[Example]]:  # noqa: ARG002
        self._sources = {name: self._sources.get(name) or self._source(name, pupil) for name, pupil in pupils.items()}
        return {name: self._sources[name].batch(pupil.step) for name, pupil in pupils.items()}

    def _source(self, name: str, pupil: Pupil) -> _Plain | _Mixed:
        seed = derived_seed(self.seed, name)
        if pupil.mixture:
            return _Mixed(self.examples, pupil, seed)
        [examples] = self.examples.values()
        return _Plain(examples, pupil.config, seed)


class _Plain:
    """The records of one file, without end."""

    def __init__(self, examples: Sequence[Example], config: TrainingConfig, seed: int, **changes: int) -> None:
        optimizer = config.optimizer.model_copy(update={"max_steps": ENDLESS, **changes})
        self.source = PlannedSource(examples, config.model_copy(update={"seed": seed, "optimizer": optimizer}))

    def batch(self, step: int) -> Sequence[Example]:
        return self.source.batch(step).examples


class _Mixed:
    """The records of several files, each in an order of its own."""

    def __init__(self, examples: Mapping[str, Sequence[Example]], pupil: Pupil, seed: int) -> None:
        optimizer = pupil.config.optimizer
        self.size = optimizer.batch_size * optimizer.gradient_accumulation_steps
        self.mixer = Mixer(pupil.mixture)
        one = {"batch_size": 1, "gradient_accumulation_steps": 1}
        self.files = {
            name: _Plain(own, pupil.config, derived_seed(seed, name), **one) for name, own in examples.items()
        }

    def batch(self, step: int) -> Sequence[Example]:
        picks = self.mixer.picks(step * self.size, (step + 1) * self.size)
        return [example for name, number in picks for example in self.files[name].batch(number)]
