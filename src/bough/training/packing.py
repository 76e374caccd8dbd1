"""The next step's batch is read and packed into rows in a thread, while this step's is computed.

Packing is a function of the examples and the token budget, so what is computed, and in which
order, stays the same. Only batches that no earlier step can change are packed ahead.

Beside a GPU it begins when the step's kernels have all been launched: two threads of Python take turns of
milliseconds, and kernels that are launched between such turns come too late to keep the GPU busy.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from bough.methods.base import Method
from bough.policy.policy import Policy
from bough.policy.processes import Processes
from bough.training.source import Batch, Source
from bough.training.step import Step


@runtime_checkable
class Foreseen(Protocol):
    """A source that knows some batches in advance."""

    def knows(self, step: int) -> bool:
        """Whether the batch of step `step` is certain, however the steps before it go."""
        ...


@dataclass(frozen=True)
class PackedBatch(Batch):
    """A batch with this process's share of it laid out in rows of at most `budget` tokens."""

    laid_out: Step | None = None
    budget: int = 0

    def within(self, budget: int) -> Step | None:
        """The rows, if they were packed for this budget: memory may have run out since."""
        return self.laid_out if budget == self.budget else None


class Packer:
    """Gives the batches of a source, one after the other; most of them packed already."""

    def __init__(
        self, source: Source, policy: Policy, method: Method[Any], processes: Processes, *, share: bool
    ) -> None:
        self.source, self.policy, self.method, self.processes, self.share = source, policy, method, processes, share
        self.after_launch = policy.device.type == "cuda"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="packing")
        self._next: tuple[int, Future[Batch | None]] | None = None

    def batch(self, step: int, budget: int) -> Batch | None:
        """The batch of step `step`; that of the following one is packed while the step is computed."""
        waiting, self._next = self._next, None
        found = waiting[1].result() if waiting and waiting[0] == step else self.source.batch(step)
        if not self.after_launch:
            self._begin(step + 1, budget)
        return found

    def launched(self, step: int, budget: int) -> None:
        """Nothing is left to do in Python before batch `step` is asked for."""
        if self.after_launch:
            self._begin(step, budget)

    def _begin(self, step: int, budget: int) -> None:
        if isinstance(self.source, Foreseen) and self.source.knows(step):
            self._next = step, self._thread.submit(self._packed, step, budget)

    def _packed(self, step: int, budget: int) -> Batch | None:
        batch = self.source.batch(step)
        if batch is None:
            return None
        examples = batch.share(self.processes)
        parts = [part for example in examples for part in self.method.parts(example)]
        laid_out = Step(self.policy, self.method, parts, budget=budget, share=self.share)
        return PackedBatch(batch.examples, batch.epoch, batch.values, batch.own, laid_out, budget)
