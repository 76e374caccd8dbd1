"""Which tasks: a world's own, or those of a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from pydantic import JsonValue
from pydantic_core import to_json

from bough.config.environment import make_options
from bough.environments.base import Environment
from bough.environments.task_file import read_tasks
from bough.errors import InputError
from bough.types import Task


def configured(kind: type[Environment], options: Mapping[str, JsonValue]) -> type[Environment]:
    """The environment with those of `options` that are its settings. Tasks come from files and cannot give any."""
    values = {name: value for name, value in options.items() if name in kind.Settings.model_fields}
    if not values:
        return kind
    more = {"settings": make_options(kind.Settings, values), "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), more)


def tasks_of(
    kind: type[Environment],
    *,
    options: Mapping[str, JsonValue],
    split: str = "train",
    task_file: Path | None = None,
    seed: int = 0,
) -> Iterator[Task]:
    """The tasks that were asked for, every one naming its environment."""
    if task_file is not None:
        if wrong := [name for name in options if name not in kind.Settings.model_fields]:
            raise InputError(
                f"--options {wrong[0]} and --task-file exclude each other: the tasks of {task_file} say which they are"
            )
        yield from read_tasks(task_file, kind.name)
        return
    for task in kind.tasks(make_options(kind.Options, options), split=split, seed=seed):
        yield task if task.environment else task.model_copy(update={"environment": kind.name})


def digest(task: Task) -> str:
    """A short name for everything that fixes the task's start: the same for what is read back of it."""
    content = {"environment": task.environment, "seed": task.seed, "data": task.data}
    plain = json.dumps(json.loads(to_json(content)), sort_keys=True)
    return hashlib.blake2b(plain.encode(), digest_size=8).hexdigest()


def first_tasks(tasks: Iterator[Task], count: int) -> list[Task]:
    """The first `count` tasks, or as many as there are. None at all, or two of one name, is an InputError."""
    chosen = list(islice(tasks, count))
    if not chosen:
        raise InputError("there is no task that fits these settings")
    seen: set[str] = set()
    for task in chosen:
        if task.id in seen:
            raise InputError(f"two tasks are named {task.id!r}; every task needs a name of its own")
        seen.add(task.id)
    return chosen
