"""Environments of an author who made a mistake in one method each."""

from typing import Any

from bough.environments.base import Observation
from bough.types import Task, Trajectory
from tests.environments.worlds import Counting

PRICES: dict[str, int] = {}


def look_up() -> Any:
    return PRICES["tea"]  # the mistake


class InInit(Counting):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        look_up()


class InStart(Counting):
    def start(self) -> Observation:  # type: ignore[override]
        return look_up()


class InStep(Counting):
    async def step(self, reply: str) -> Observation:
        return look_up()


class InTasks(Counting):
    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Any:
        yield look_up()


class InClose(Counting):
    async def close(self) -> None:
        look_up()


class InExpert(Counting):
    async def expert(self) -> str | None:
        return look_up()


def reward(trajectory: Trajectory) -> float:
    return look_up()


class InSetup(Counting):
    @classmethod
    def setup(cls) -> Any:
        yield look_up()
