"""Which tasks: a world's own, or those of a file."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from pydantic import JsonValue
from pydantic_core import to_json

from bough.config.base import Config
from bough.config.environment import make_options
from bough.environments.base import Environment, WorldError, blame
from bough.environments.task_file import read_tasks
from bough.errors import BoughError, InputError
from bough.types import Task

log = logging.getLogger(__name__)
# So many repeated tasks in a row are taken for the end of the tasks.
MAX_REPEATED = 10_000


def configured(environment_class: type[Environment], options: Mapping[str, JsonValue]) -> type[Environment]:
    """The environment with those of `options` that are its settings. Tasks come from files and cannot give any."""
    values = {name: value for name, value in options.items() if name in environment_class.Settings.model_fields}
    if not values:
        return environment_class
    more = {
        "settings": make_options(environment_class.Settings, values),
        "__module__": environment_class.__module__,
        "__doc__": environment_class.__doc__,
    }
    return type(environment_class.__name__, (environment_class,), more)


def tasks_of(
    environment_class: type[Environment],
    *,
    options: Mapping[str, JsonValue],
    split: str = "train",
    task_file: Path | None = None,
    seed: int = 0,
) -> Iterator[Task]:
    """The tasks that were asked for, each with an id of its own and naming its environment."""
    if task_file is not None:
        if wrong := [name for name in options if name not in environment_class.Settings.model_fields]:
            raise InputError(
                f"--options {wrong[0]} and --task-file exclude each other: the tasks of {task_file} say which they are"
            )
        yield from read_tasks(task_file, environment_class.name)
        return
    for task in _distinct(
        _made(environment_class, make_options(environment_class.Options, options), split, seed), environment_class.name
    ):
        yield task if task.environment else task.model_copy(update={"environment": environment_class.name})


def _made(environment_class: type[Environment], options: Config, split: str, seed: int) -> Iterator[Task]:
    """The environment's own tasks. Whatever goes wrong in its code is a WorldError."""
    try:
        for task in environment_class.tasks(options, split=split, seed=seed):
            if not isinstance(task, Task):
                raise WorldError(f"tasks gave a {type(task).__name__}; it must give tasks")
            to_json(task)  # half a surrogate pair is text to Python, but to no file
            yield task
    except BoughError:
        raise
    except Exception as error:
        raise blame("tasks", error) from error


def _distinct(tasks: Iterable[Task], name: str) -> Iterator[Task]:
    """The tasks without those that repeat an earlier one. A different task of the same id gets a number: `id-2`."""
    seen: dict[str, str] = {}
    repeated, in_a_row = 0, 0
    try:
        for task in tasks:
            id, number, content = task.id, 1, digest(task)
            while seen.get(id, content) != content:
                number += 1
                id = f"{task.id}-{number}"
            if id not in seen:
                seen[id], in_a_row = content, 0
                yield task if id == task.id else task.model_copy(update={"id": id})
                continue
            repeated, in_a_row = repeated + 1, in_a_row + 1
            if in_a_row >= MAX_REPEATED:  # there may be no other tasks, without end
                return
    finally:
        if repeated:
            log.warning("%s: %d tasks repeat an earlier one and are skipped", name, repeated)


def digest(task: Task) -> str:
    """A short name for everything that fixes the task's start: the same for what is read back of it."""
    content = {"environment": task.environment, "seed": task.seed, "data": task.data}
    plain = json.dumps(json.loads(to_json(content)), sort_keys=True)
    return hashlib.blake2b(plain.encode(), digest_size=8).hexdigest()


def first_tasks(tasks: Iterator[Task], count: int) -> list[Task]:
    """The first `count` tasks, or as many as there are. None at all is an InputError."""
    chosen = list(islice(tasks, count))
    if not chosen:
        raise InputError("there is no task that fits these settings")
    return chosen
