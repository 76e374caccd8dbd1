"""Where the examples of a step come from: a plan over data on file, or a world that is played in meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bough.config.training import TrainingConfig
from bough.errors import BoughError
from bough.training.objective import Example
from bough.training.plan import Curriculum, Plan


@dataclass(frozen=True)
class Batch:
    """The examples of one optimizer step, and numbers about them for the log."""

    examples: Sequence[Example]
    epoch: int
    values: dict[str, Any] = field(default_factory=dict)


class Source(Protocol):
    """Gives the batches of a run in order. After a kill it is asked for a later one first, and must find its place."""

    @property
    def levels(self) -> list[int]:
        """What a checkpoint keeps of the source, for `restore`: what it has been told of the epochs so far."""
        ...

    def __len__(self) -> int:
        """How many steps there will be."""
        ...

    def batch(self, step: int) -> Batch | None:
        """The batch of step `step`, counted from 0; None where there is nothing left to learn from."""
        ...

    def ends_epoch(self, step: int) -> bool:
        """Whether an epoch ends with this step."""
        ...

    def tell(self, success: float) -> None:
        """How well an epoch went that has just ended."""
        ...

    def restore(self, levels: Sequence[int]) -> None:
        """Takes up what a checkpoint kept."""
        ...


class PausedError(BoughError):
    """A source thinks that the run should not go on as it does; the message says why."""


class FileSource:
    """Examples from a file, in the order of a plan."""

    def __init__(self, examples: Sequence[Example], config: TrainingConfig) -> None:
        self.examples, self.config = examples, config
        self.restore((0,))

    def restore(self, levels: Sequence[int]) -> None:
        config = self.config
        curriculum = Curriculum(
            config.curriculum_start_ratio, config.curriculum_warmup_epochs, config.curriculum_success
        )
        self.plan = Plan(
            [example.cluster for example in self.examples],
            [example.difficulty for example in self.examples],
            batch_size=config.batch_size * config.gradient_accumulation_steps,
            num_epochs=config.num_epochs,
            max_steps=config.max_steps,
            curriculum=curriculum if config.curriculum else None,
            seed=config.seed,
            levels=levels,
        )

    @property
    def levels(self) -> list[int]:
        return list(self.plan.levels)

    def __len__(self) -> int:
        return len(self.plan)

    def batch(self, step: int) -> Batch:
        planned = self.plan[step]
        return Batch([self.examples[i] for i in planned.examples], planned.epoch)

    def ends_epoch(self, step: int) -> bool:
        return self.plan.ends_epoch(step)

    def tell(self, success: float) -> None:
        if self.config.curriculum_success is not None:
            self.plan.tell(success)
