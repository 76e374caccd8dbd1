"""Where an online run trains: in the processes that exist already, or in learners that a cluster starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from bough.config.online import OnlineConfig
from bough.errors import InputError
from bough.event_loop import StoppedError
from bough.files import read_json
from bough.online.method import GroupExample, OnlineMethod
from bough.online.schedule import shares
from bough.online.source import OnlineSource
from bough.policy.policy import Policy
from bough.policy.processes import ProcessLostError
from bough.training.plan import Batch
from bough.training.run import Run, Trained

C = TypeVar("C", bound=OnlineConfig)


def with_learners(config: C, train: Callable[[C], Trained]) -> Trained:
    """`train(config)` here, or in each of several learners on the cluster of the settings."""
    if config.cluster.learners == 1:
        return train(config)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("--learners starts the processes that train; leave out accelerate launch or torchrun")
    from bough.rollouts.ray_learners import train_with_learners

    return train_with_learners(config, config.cluster, train)


# The batches of an online run for all of its learner processes.
# The first process plays, gathers and writes files; it deals each batch out by tokens, and the others get their share
# of it, its metrics and its errors from the first. With one process all of this is `OnlineSource`. Where the weights
# are sharded, the first process has a whole copy to sample with; all of them take part in renewing it.

See = Callable[[dict[str, Any]], dict[str, float]]


@dataclass(frozen=True)
class _Step:
    """What the first process says of a step to one process: its batch, and what the batch has changed.

    `levels` are the source's, and `seen` are the numbers that `see` was called with, if it was.
    """

    batch: Batch | None
    levels: list[int]
    seen: dict[str, Any] | None


class SharedSource:
    """A `Source` in each process. Only the first one builds environments and a sampler."""

    def __init__(self, run: Run[Any], method: OnlineMethod, policy: Policy, *, see: See | None = None) -> None:
        """`see` is called in every process with the numbers of each batch, and may add metrics to them."""
        config: OnlineConfig = run.config
        self._run, self._processes, self._see, self._policy = run, run.processes, see, policy
        self._updates = config.rollouts.updates * config.rollouts.passes
        self._num_steps = config.optimizer.max_steps or 0
        self._number = -1
        self._seen: dict[str, Any] | None = None
        self.levels: list[int] = []
        self._source: OnlineSource | None = None
        self._copy: Policy | None = None

        def build() -> None:
            if policy.sharded:
                self._copy = run.load_policy(reference=True, temperature=policy.temperature, whole=True)
            sampled = self._copy or policy
            self._source = OnlineSource(
                config, method, sampled, run.template, run.folder, see=self._note, interrupts=run.interrupts
            )

        self._processes.first_does(build)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and not isinstance(error, StoppedError):  # else all processes know
                self._processes.report_failure(error)
        finally:
            if self._source is not None:
                self._source.close()
        if error is not None and ProcessLostError.explains(error):
            raise ProcessLostError from error

    def __len__(self) -> int:
        return self._num_steps

    def ends_epoch(self, step: int) -> bool:
        return (step + 1) % self._updates == 0

    def end_epoch(self, success: float) -> None:
        """No task depends on a success rate: the order is fixed."""

    def restore(self, levels: Sequence[int]) -> None:
        self.levels = list(levels)
        if self._source is not None:
            self._source.restore(levels)

    def batch(self, step: int) -> Batch | None:
        """This process's share of the batch of step `step`; errors of the first process are raised in all."""
        if step // self._updates != self._number:
            self._number = step // self._updates
            if self._policy.sharded:
                self._renew()
        found = self._processes.first_deals(lambda: self._played(step))
        self.levels = found.levels
        if self._source is None and self._see is not None and found.seen is not None:
            self._see(found.seen)
        return found.batch

    def ledgers(self, last_step: int) -> list[dict[str, Any]]:
        """The ledgers after the last step, as JSON; those on file where a resumed run had nothing left to play."""

        def read() -> list[dict[str, Any]]:
            assert self._source is not None
            file, resumed = self._run.folder.ledger, self._run.resumed
            if resumed and resumed.step == last_step and file.exists():
                try:
                    on_file: list[dict[str, Any]] = read_json(file)
                except ValueError as error:
                    raise InputError(f"{file} is damaged: {error}") from None
                return on_file
            return [ledger.to_json() for ledger in self._source.ledgers]

        return self._processes.first_does(read)

    def _played(self, step: int) -> list[_Step]:
        """In the first process: what each of them is told of a step."""
        assert self._source is not None
        self._seen = None
        batch, count = self._source.batch(step), self._processes.count
        levels = self._source.levels
        if batch is None or count == 1:
            return [_Step(batch, levels, self._seen)] * count
        dealt = shares(cast("Sequence[GroupExample]", batch.examples), count)
        first = _Step(replace(batch, own=dealt[0]), levels, self._seen)
        others = [_Step(Batch(own, batch.epoch, batch.values, own), levels, self._seen) for own in dealt[1:]]
        return [first, *others]

    def _note(self, values: dict[str, Any]) -> dict[str, float]:
        """The first process's `see`."""
        self._seen = values
        return self._see(values) if self._see is not None else {}

    def _renew(self) -> None:
        """Puts the present weights into the copy."""
        weights = self._policy.weights()
        if self._copy is not None:
            missing = self._copy.model.load_state_dict(weights, strict=False)
            assert not missing.unexpected_keys, missing.unexpected_keys
