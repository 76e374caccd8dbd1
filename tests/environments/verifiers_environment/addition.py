"""A taskset of three sums, with a reward that an untrained model can get, and broken relatives of it."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf


class Sum(vf.TaskData):
    answer: int


class SumTask(vf.Task[Sum, vf.State, vf.TaskConfig]):
    @vf.reward(weight=1.0)
    async def correct(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == str(self.data.answer))

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class AdditionConfig(vf.TasksetConfig):
    largest: int = 3


class Addition(vf.Taskset[SumTask, AdditionConfig]):
    """Sums of two numbers."""

    def load(self) -> Iterator[SumTask]:
        for number in range(1, self.config.largest + 1):
            prompt = f"What is {number} + {number}? Answer with the number alone."
            yield SumTask(Sum(name=f"sum-{number}", prompt=prompt, answer=2 * number), self.config.task)


__all__ = ["Addition"]
