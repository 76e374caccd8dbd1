"""A taskset of three sums."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf


class Sum(vf.TaskData):
    answer: int


class SumTask(vf.Task[Sum, vf.State, vf.TaskConfig]):
    @vf.reward(weight=1.0)
    async def correct(self, trace: vf.Trace) -> float:
        if trace.last_reply == "raise":
            raise UnicodeError("no such number")
        return float(trace.last_reply.strip() == str(self.data.answer))

    @vf.reward(weight=0.5)
    async def letters(self, trace: vf.Trace) -> float:
        """Differs between the replies of a model with random weights."""
        return sum(map(str.isalpha, trace.last_reply)) / max(len(trace.last_reply), 1)

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
