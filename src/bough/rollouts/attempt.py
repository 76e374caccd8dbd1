"""What is to be played: an attempt at a task, with its id and its seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bough.config.evaluation import EvalConfig
from bough.config.rollouts import CollectConfig
from bough.digest import derived_seed
from bough.environments.base import Environment
from bough.environments.tasks import first_tasks, tasks_of
from bough.rollouts.episode import Replayed
from bough.terminal import console
from bough.types import Task


@dataclass(frozen=True)
class Attempt:
    """One episode to be played, from its beginning or from a recorded state.

    `temperature` is what to sample at, where the attempts at a task differ in it.
    """

    id: str
    task: Task
    seed: int
    replayed: Replayed | None = None
    temperature: float | None = None


def wanted_tasks(environment_class: type[Environment], config: CollectConfig | EvalConfig) -> list[Task]:
    """The tasks that the settings ask for. Warns if there are fewer."""
    source = tasks_of(
        environment_class,
        options=config.environment.options,
        split=config.environment.split,
        task_file=config.environment.task_file,
        seed=config.seed,
    )
    tasks = first_tasks(source, config.tasks)
    if len(tasks) < config.tasks:
        console.err().print(f"{config.tasks} tasks were requested; there are only {len(tasks)}", style="yellow")
    return tasks


def attempts(tasks: Iterable[Task], count: int, seed: int) -> Iterator[Attempt]:
    """`count` attempts at each task. An attempt's id and seed depend on the task, its number and `seed` alone."""
    for task in tasks:
        for number in range(count):
            id = f"{task.id}#{number}"
            yield Attempt(id, task, derived_seed(seed, id))
