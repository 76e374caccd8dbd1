"""Where the examples of a step come from, and examples from data in the order of a plan."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic_core import to_json
from torch import Tensor

from bough.config.training import TrainingConfig
from bough.disk import replacing
from bough.errors import BoughError
from bough.methods.base import Columns, Example
from bough.policy.processes import Processes
from bough.training.plan import Curriculum, Plan

# Records that an error about a batch names.
PLACES_NAMED = 3


@dataclass(frozen=True)
class Batch:
    """The examples of one optimizer step, and numbers about them for the log.

    `own` are those that this process computes, where the source has dealt them out.
    """

    examples: Sequence[Example]
    epoch: int
    values: dict[str, Any] = field(default_factory=dict)
    own: Sequence[Example] | None = None

    def share(self, processes: Processes) -> Sequence[Example]:
        """What this process computes of the batch."""
        return processes.share(self.examples) if self.own is None else self.own

    def dump(self, path: Path) -> str:
        """Writes one line per example, for inspection; returns the path and where the first few examples came from."""
        with replacing(path) as draft:
            draft.write_bytes(b"".join(to_json(asdict(example), fallback=_plain) + b"\n" for example in self.examples))
        places = ", ".join(example.place for example in self.examples[:PLACES_NAMED] if example.place)
        return f"{path} (from {places}…)" if places else str(path)


def _plain(value: Any) -> Any:
    """A value that JSON has no type for, as one that it has."""
    return value.tolist() if isinstance(value, Tensor) else value.model_dump()


class Source(Protocol):
    """Gives the batches of a run in order. A run that resumes asks for a later batch first."""

    @property
    def levels(self) -> list[int]:
        """What a checkpoint keeps of the source, for `restore`."""
        ...

    def __len__(self) -> int:
        """The number of steps."""
        ...

    def batch(self, step: int) -> Batch | None:
        """The batch of step `step`, counted from 0; None where there is nothing left to learn from."""
        ...

    def ends_epoch(self, step: int) -> bool:
        """Whether an epoch ends with this step."""
        ...

    def end_epoch(self, success: float) -> None:
        """The success rate of the epoch that has just ended."""
        ...

    def restore(self, levels: Sequence[int]) -> None:
        """Puts back what a checkpoint kept."""
        ...


class PausedError(BoughError):
    """A source asks to pause the run; the message says why."""


class PlannedSource:
    """Examples that are all known before the first step, in the order of a plan."""

    def __init__(self, examples: Sequence[Example], config: TrainingConfig) -> None:
        self.examples, self.config = examples, config
        self.restore((0,))

    def restore(self, levels: Sequence[int]) -> None:
        config = self.config
        curriculum = Curriculum(
            config.curriculum.start_ratio, config.curriculum.warmup_epochs, config.curriculum.success
        )
        self.plan = Plan(
            *_columns(self.examples),
            batch_size=config.optimizer.batch_size * config.optimizer.gradient_accumulation_steps,
            num_epochs=config.optimizer.num_epochs,
            max_steps=config.optimizer.max_steps,
            curriculum=curriculum if config.curriculum.enabled else None,
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

    def knows(self, step: int) -> bool:
        return self.plan.laid_out(step)

    def ends_epoch(self, step: int) -> bool:
        return self.plan.ends_epoch(step)

    def end_epoch(self, success: float) -> None:
        if self.config.curriculum.success is not None:
            self.plan.end_epoch(success)


def _columns(examples: Sequence[Example]) -> tuple[Sequence[Hashable], Sequence[float]]:
    """What a plan knows of the examples."""
    if isinstance(examples, Columns):
        return examples.clusters, examples.difficulties
    return [example.cluster for example in examples], [example.difficulty for example in examples]
