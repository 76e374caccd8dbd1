"""A small world for the tests of clusters: name the number that you were told."""

import os
import signal
import time
from pathlib import Path

from bough.environments.base import Environment, EnvironmentFailedError, Observation
from bough.errors import InputError
from bough.rollouts.collect import Attempt
from bough.types import Task
from tests.commands.letters import WriteLetter


class Echo(Environment):
    """`data` says what goes wrong: the environment fails, the task is refused, or the process dies."""

    name = "echo"

    def start(self) -> Observation:
        if self.task.data.get("kills"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.task.data.get("fails"):
            raise EnvironmentFailedError("the world broke")
        if self.task.data.get("refuses"):
            raise InputError("this task is not allowed")
        return Observation.say(f"Say {self.task.seed}.")

    def step(self, reply: str) -> Observation:
        return Observation.end("Thanks.", success=str(reply) == str(self.task.seed))

    def expert(self) -> str:
        return str(self.task.seed)

    @classmethod
    def tasks(cls, options, *, split: str = "train", seed: int = 0):
        for number in range(1000):
            yield Task(id=f"echo-{number}", environment=cls.name, seed=number + seed)


class NeedsFile(Echo):
    """Cannot be played where a file is missing, whose name is in a variable. Waits for the file of another one."""

    name = "needs-file"

    def start(self) -> Observation:
        while not Path(os.environ.get("BOUGH_TEST_GATE", "/")).exists():
            time.sleep(0.05)
        return super().start()

    @classmethod
    def lacks(cls) -> str | None:
        return None if Path(os.environ.get("BOUGH_TEST_FILE", "/nowhere")).exists() else "its file is missing"


class LetterWithFile(WriteLetter):
    """Write a letter, where the same file is."""

    @classmethod
    def lacks(cls) -> str | None:
        return NeedsFile.lacks()


def attempt(number: int = 0, **data: bool) -> Attempt:
    return Attempt(f"echo-{number}#0", Task(id=f"echo-{number}", environment="echo", seed=number, data=data), seed=1)
