"""A world that a small model can get better at in a few steps: the share of its reply's tokens that are one letter."""

from collections.abc import Iterator
from typing import Any

from bough.environments.base import Environment, Observation
from bough.types import Task


class Letters(Environment):
    """Write e as often as you can."""

    name = "letters"
    max_turns = 1

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        for number in range(40):
            yield Task(id=f"{split}-{seed}-{number}", data={"number": number})

    async def start(self) -> Observation:
        return Observation.say(f"Task {self.task.data['number']}: write e.")

    async def step(self, reply: str) -> Observation:
        share = reply.count("e") / max(1, len(reply))
        return Observation.end(success=share > 0.2, reward=share)


class Hopeless(Letters):
    """Always the same reward."""

    async def step(self, reply: str) -> Observation:
        return Observation.end(success=False, reward=0.0)


class Rounding(Letters):
    """Rewards that differ in the last bit only."""

    async def step(self, reply: str) -> Observation:
        return Observation.end(success=False, reward=0.3 if len(reply) % 2 else 0.1 + 0.2)


class Few(Letters):
    """Two tasks only."""

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        for number in range(2):
            yield Task(id=f"{split}-{seed}-{number}", data={"number": number})


class Late(Letters):
    """The first five tasks pay all the same."""

    async def step(self, reply: str) -> Observation:
        if int(str(self.task.data["number"])) < 5:
            return Observation.end(success=False, reward=0.0)
        return await super().step(reply)


class Gap(Letters):
    """After the first four tasks come sixteen that pay all the same."""

    async def step(self, reply: str) -> Observation:
        if 4 <= int(str(self.task.data["number"])) < 20:
            return Observation.end(success=False, reward=0.0)
        return await super().step(reply)


class Early(Letters):
    """A point in one of two turns: in the first if that has an even number of letters."""

    max_turns = 2
    first: float | None = None

    async def step(self, reply: str) -> Observation:
        if self.first is None:
            self.first = float(len(reply) % 2 == 0)
            return Observation.say("Again.", reward=self.first)
        return Observation.end(success=True, reward=1.0 - self.first)
