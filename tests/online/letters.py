"""A world that a small model can get better at in a few steps: the share of its reply's tokens that are one letter."""

import asyncio
import os
import random
import signal
import threading
from collections import Counter
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


class Corridor(Letters):
    """Three turns, each rewarded if the reply has an odd number of characters; the state is the turn."""

    max_turns = 3

    async def start(self) -> Observation:
        self.turn = 0
        return Observation.say("Write something three times.", state="0")

    async def step(self, reply: str) -> Observation:
        self.turn += 1
        good = float(len(reply) % 2)
        if self.turn == self.max_turns:
            return Observation.end(success=bool(good), reward=good)
        return Observation.say(f"Turn {self.turn}.", reward=good, state=f"{self.turn}")


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


class Broken(Letters):
    """Fails for good, from the task with number `begin` on."""

    begin = 0

    async def step(self, reply: str) -> Observation:
        if int(str(self.task.data["number"])) >= self.begin:
            raise RuntimeError("the browser is gone")
        return await super().step(reply)


class BrokenLater(Broken):
    """Plays two batches of two tasks, then fails for good."""

    begin = 4


class BrokenHeldOut(Letters):
    """Fails on the tasks that are never learnt from."""

    async def start(self) -> Observation:
        if self.task.id.startswith("unseen"):
            raise RuntimeError("the browser is gone")
        return await super().start()


class Counting(Letters):
    """Knows how often each task was begun."""

    begun: Counter[str] = Counter()

    async def start(self) -> Observation:
        self.begun[self.task.id] += 1
        self.attempt = self.begun[self.task.id]
        return await super().start()


class Flaky(Counting):
    """The first attempt at each task fails, and every attempt at the second task."""

    async def step(self, reply: str) -> Observation:
        if self.attempt == 1 or self.task.data["number"] == 1:
            raise RuntimeError("the browser is gone")
        return await super().step(reply)


class MostlyLost(Counting):
    """Only the first attempt at each task can be finished."""

    async def step(self, reply: str) -> Observation:
        if self.attempt > 1:
            raise RuntimeError("the browser is gone")
        return await super().step(reply)


class Unsure(Counting):
    """The first attempt at each task cannot be scored."""

    async def step(self, reply: str) -> Observation:
        return Observation.end(success=None) if self.attempt == 1 else await super().step(reply)


class Uneven(Letters):
    """Every third task pays all the same, and every step takes its own time."""

    async def step(self, reply: str) -> Observation:
        await asyncio.sleep(random.choice([0.0, 0.0, 0.01, 0.08]))
        if int(str(self.task.data["number"])) % 3 == 0:
            return Observation.end(success=False, reward=0.0)
        return await super().step(reply)


class Held(Letters):
    """The first task takes two turns, and its first waits until it is released; the ends of its second are counted."""

    max_turns = 2
    released = threading.Event()
    ended = threading.Semaphore(0)
    seen = 0

    async def step(self, reply: str) -> Observation:
        self.seen += 1
        if self.task.data["number"] == 0 and self.seen == 1:
            while not self.released.is_set():
                await asyncio.sleep(0.01)
            return Observation.say("Again.")
        if self.task.data["number"] == 0:
            self.ended.release()
        return await super().step(reply)


class Interrupting(Counting):
    """Interrupts its process once: in the n-th attempt at the task that `at` names."""

    at: tuple[str, int] | None = None

    async def step(self, reply: str) -> Observation:
        if Interrupting.at == (self.task.id, self.attempt):
            Interrupting.at = None
            os.kill(os.getpid(), signal.SIGINT)
        return await super().step(reply)


class Endless(Interrupting):
    """All attempts but the one that interrupts never end."""

    async def step(self, reply: str) -> Observation:
        if Interrupting.at != (self.task.id, self.attempt):
            await asyncio.Event().wait()
        return await super().step(reply)


class Later(Counting):
    """Tasks from the third on begin when the policy trains; the ends of their episodes are counted.

    Every second attempt at a task is paid, so every group teaches something.
    """

    training = threading.Event()
    ended = threading.Semaphore(0)

    @property
    def _later(self) -> bool:
        return int(str(self.task.data["number"])) >= 2

    async def start(self) -> Observation:
        while self._later and not self.training.is_set():
            await asyncio.sleep(0.01)
        return await super().start()

    async def step(self, reply: str) -> Observation:
        if self._later:
            self.ended.release()
        return Observation.end(success=True, reward=float(self.attempt % 2))


class Far(Letters):
    """Only the fourth turn can be rewarded, if the reply has an odd number of characters; the third reply is "go"."""

    max_turns = 4

    async def start(self) -> Observation:
        self.turn = 0
        return Observation.say(f"Task {self.task.data['number']}.", state="0")

    async def step(self, reply: str) -> Observation:
        self.turn += 1
        if self.turn == 3 and reply != "go":
            return Observation.end(success=False, reward=0.0)
        if self.turn == self.max_turns:
            won = len(reply) % 2
            return Observation.end(success=bool(won), reward=float(won))
        return Observation.say(f"Turn {self.turn} after {reply}.", state=str(self.turn))


class Rare(Letters):
    """Of sixteen tasks, fifteen pay all the same."""

    async def step(self, reply: str) -> Observation:
        if int(str(self.task.data["number"])) % 16 != 15:
            return Observation.end(success=False, reward=0.0)
        return await super().step(reply)
