"""Plays episodes in adapted environments, as `bough env check` and a collection do."""

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Any

from bough.config.groups import LimitsConfig
from bough.engines.base import Answer
from bough.environments.base import Environment, Observation
from bough.environments.check import check
from bough.environments.isolated import Isolated
from bough.rollouts.collect import LocalRunner, Tally, attempts, collect
from bough.rollouts.episode import RandomAgent
from bough.types import Message, Task, Trajectory


class ScriptedAgent:
    """Gives the same replies in every episode, the last one for ever."""

    name = "scripted"

    def __init__(self, *replies: str) -> None:
        self.replies = replies

    def enter(self, environment: Isolated, *, episode: str, seed: int) -> "ScriptedChat":
        return ScriptedChat(list(self.replies))

    async def close(self) -> None:
        return


class ScriptedChat:
    def __init__(self, replies: list[str]) -> None:
        self.replies = replies

    async def answer(self, messages: list[Message], tools: list[dict[str, Any]]) -> Answer:
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return Answer(Message(role="assistant", content=reply), None, "stop")

    def close(self) -> None:
        return


def some_tasks(environment_class: type[Environment], count: int = 2, **options: Any) -> list[Task]:
    made: Any = environment_class.tasks(environment_class.Options(**options))
    return list(islice(made, count))


def problems(environment_class: type[Environment], tasks: list[Task], name: str | None = None) -> list[str]:
    """What `bough env check` finds; with a `name`, in another process too."""
    return asyncio.run(check(environment_class, name, tasks)).problems


def played(
    environment_class: type[Environment], task: Task, *replies: Message | str, timeout_s: float = 60
) -> list[Observation]:
    """The start and the answers to the replies."""

    async def play() -> list[Observation]:
        environment = Isolated(environment_class, task, step_timeout_s=timeout_s)
        try:
            return [await environment.start(), *[await environment.step(reply) for reply in replies]]
        finally:
            await environment.close(strict=True)

    return asyncio.run(play())


def collected(
    environment_class: type[Environment],
    tasks: Sequence[Task],
    agent: Any = None,
    *,
    retries: int = 0,
    step_timeout_s: float = 60,
    max_turns: int = 8,
    concurrency: int = 4,
) -> tuple[Tally, dict[str, Trajectory]]:
    """A collection with one attempt at each task."""
    kept: dict[str, Trajectory] = {}
    limits = LimitsConfig(max_turns=max_turns, step_timeout_s=step_timeout_s)
    tally = asyncio.run(
        collect(
            LocalRunner.of(environment_class, agent or RandomAgent(), limits),
            attempts(tasks, 1, 0),
            lambda trajectory, images: kept.update({trajectory.task.id: trajectory}),
            retries=retries,
            concurrency=concurrency,
        )
    )
    return tally, kept
