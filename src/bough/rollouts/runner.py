"""Where episodes are played: in this process, or elsewhere behind the same protocol."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from bough.config.groups import LimitsConfig, PlayedTasksConfig
from bough.environments.base import Environment
from bough.environments.tasks import first_tasks, tasks_of
from bough.files import derived_seed
from bough.rollouts.agents import Agent
from bough.rollouts.episode import play
from bough.terminal import console
from bough.types import Task, Trajectory

Images = list[tuple[int, bytes]]


class Runner(Protocol):
    """Plays attempts, many at the same time."""

    async def play(self, attempt: Attempt, *, episode: str | None = None) -> tuple[Trajectory, Images]:
        """Plays one attempt; returns its record and the images of its observations, each with its turn.

        `episode` is its name in the engine, by default the attempt's id. Raises
        EnvironmentFailedError or EngineError if environment or engine failed: that says nothing
        about the agent, and the attempt may be played again.
        """


@dataclass(frozen=True)
class LocalRunner:
    """Plays in this process. `agent_of` says who plays an attempt."""

    environment_class: type[Environment]
    agent_of: Callable[[Attempt], Agent]
    limits: LimitsConfig

    @classmethod
    def of(cls, environment_class: type[Environment], agent: Agent, limits: LimitsConfig) -> LocalRunner:
        """One agent plays all attempts."""
        return cls(environment_class, lambda _: agent, limits)

    async def play(self, attempt: Attempt, *, episode: str | None = None) -> tuple[Trajectory, Images]:
        return await play(
            self.environment_class,
            attempt.task,
            self.agent_of(attempt),
            id=attempt.id,
            episode=episode,
            seed=attempt.seed,
            limits=self.limits,
        )


@dataclass(frozen=True)
class Attempt:
    """One episode to be played.

    `temperature` is what to sample at, where the attempts at a task differ in it.
    """

    id: str
    task: Task
    seed: int
    temperature: float | None = None


def wanted_tasks(
    environment_class: type[Environment], wanted: PlayedTasksConfig, num_tasks: int, seed: int
) -> list[Task]:
    """The tasks that the settings ask for. Warns if there are fewer."""
    source = tasks_of(
        environment_class,
        options=wanted.options,
        split=wanted.split,
        task_file=wanted.task_file,
        seed=seed,
    )
    tasks = first_tasks(source, num_tasks)
    if len(tasks) < num_tasks:
        console.err().print(f"{num_tasks} tasks were requested; there are only {len(tasks)}", style="yellow")
    return tasks


def attempts(tasks: Iterable[Task], count: int, seed: int) -> Iterator[Attempt]:
    """`count` attempts at each task. An attempt's id and seed depend on the task, its number and `seed` alone."""
    for task in tasks:
        for number in range(count):
            id = f"{task.id}#{number}"
            yield Attempt(id, task, derived_seed(seed, id))


# Python's garbage collector while episodes are played, and between the stages of a run.
# Its full collections walk through every object of the process, and loading torch and transformers leaves hundreds of
# thousands that stay until the end. They took a quarter of the host's time per turn. The rest, a tenth, went into
# collections after every 700 new objects: a turn makes hundreds, and almost none of them is garbage in a cycle.

# New objects between two collections. A cycle may hold the tokens of a few hundred turns until the next one.
THRESHOLD = 20_000


@cache
def spare_what_is_loaded() -> None:
    """Takes the objects that exist now out of all later collections and makes these rarer, once per process."""
    gc.collect()
    gc.freeze()
    _, *older = gc.get_threshold()
    gc.set_threshold(THRESHOLD, *older)


def free_gpu_memory() -> None:
    """Frees what finished work has left on the GPU, for the next work of this process and for other processes.

    Models refer to themselves, so only the collector frees them, and it leaves alone what it was told to spare.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    spared = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    torch.cuda.empty_cache()
    if spared:
        gc.freeze()
