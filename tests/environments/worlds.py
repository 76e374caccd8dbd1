"""Small worlds for tests: one that keeps the contract, and some that break it, each in its own way."""

import itertools
from collections.abc import Iterator
from typing import Any

from bough.environments.base import Environment, EnvironmentFailedError, Observation
from bough.types import Task


class Counting(Environment):
    """Say the numbers from 1 to `goal` in order."""

    name = "counting"
    max_turns = 6

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        for number in itertools.count():
            yield Task(id=f"{split}-{seed}-{number}", data={"goal": 2 + number % 3, "number": number})

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.goal, self.said, self.closed = int(str(task.data["goal"])), 0, 0

    async def start(self) -> Observation:
        return Observation.begin("Count.", f"To {self.goal}.", hint=" Begin with 1.")

    async def step(self, reply: str) -> Observation:
        if not reply.isdecimal():
            return Observation.say("A number, please.", error="malformed")
        if int(reply) != self.said + 1:
            return Observation.say("No.", action=reply, error="invalid_action")
        self.said += 1
        if self.said == self.goal:
            return Observation.end("Done.", success=True, reward=1.0, action=reply, progress=1.0)
        return Observation.say("Yes.", action=reply, progress=self.said / self.goal)

    async def close(self) -> None:
        self.closed += 1

    async def expert(self) -> str | None:
        return str(self.said + 1)

    def choices(self) -> list[str]:
        return [str(number) for number in range(1, self.goal + 1)]


class Forgetful(Counting):
    """Another start each time."""

    starts = itertools.count()

    async def start(self) -> Observation:
        return Observation.say(f"Start {next(self.starts)}.")


class Fragile(Counting):
    """Raises at a reply it does not like."""

    async def step(self, reply: str) -> Observation:
        int(reply)
        return await super().step(reply)


class Entangled(Counting):
    """Counts for all episodes together."""

    total = 0

    async def start(self) -> Observation:
        type(self).total = 0
        return await super().start()

    async def step(self, reply: str) -> Observation:
        type(self).total += 1
        return Observation.say(f"{self.total} replies.")


class Generous(Counting):
    """Rewards more than it declares."""

    reward_range = (0.0, 0.5)


class Breaking(Counting):
    """Breaks the first `broken` times an episode of a task is started."""

    broken: dict[str, int] = {}

    async def start(self) -> Observation:
        left = self.broken.get(self.task.id, 0)
        if left:
            self.broken[self.task.id] = left - 1
            raise EnvironmentFailedError("the browser died")
        return await super().start()


class Unsure(Counting):
    """Its expert can count to 2."""

    async def expert(self) -> str | None:
        return await super().expert() if self.said < 2 else None


class NotAnEnvironment:
    """Only what is needed, and no base class."""

    def __init__(self, task: Task) -> None:
        self.task = task

    async def start(self) -> Observation:
        return Observation.say("Hello.")

    async def step(self, reply: str) -> Observation:
        return Observation.end(success=bool(reply))


class Losing(Counting):
    """Its expert gives up."""

    async def step(self, reply: str) -> Observation:
        return Observation.end("Lost.", success=False) if reply == "0" else await super().step(reply)

    async def expert(self) -> str | None:
        return "0"


class Aimless(Counting):
    """Its expert never finishes."""

    async def expert(self) -> str | None:
        return "7"


class Plain(Environment):
    """Written without async."""

    max_turns = 2

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> list[Task]:
        return [Task(id=f"{split}-{number}") for number in range(3)]

    def start(self) -> Observation:
        return Observation.say("Say yes.")

    def step(self, reply: str) -> Observation:
        return Observation.end(success=reply == "yes")

    def close(self) -> None:
        self.closed = True

    def expert(self) -> str:
        return "yes"
