"""Which tasks: the environment's own, or those of a file."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from pydantic import JsonValue, ValidationError
from pydantic_core import to_json

from bough.config.base import Config
from bough.config.groups import make_options
from bough.config.problems import listed
from bough.data.base import row_error
from bough.data.lines import files, lines
from bough.data.reader import parse
from bough.environments.base import Environment, EnvironmentFailedError, blame
from bough.errors import BoughError, InputError, RowError
from bough.files import json_digest, text_digest
from bough.ledger import plural
from bough.types import Task

log = logging.getLogger(__name__)
# After this many repeated tasks in a row, there are taken to be no more tasks.
MAX_REPEATED = 10_000


def configured(environment_class: type[Environment], options: Mapping[str, JsonValue]) -> type[Environment]:
    """The environment with those `options` that are its settings. Tasks may come from files and cannot set any."""
    values = {name: value for name, value in options.items() if name in environment_class.Settings.model_fields}
    if not values:
        return environment_class
    more = {
        "settings": _options(environment_class, environment_class.Settings, values),
        "__module__": environment_class.__module__,
        "__doc__": environment_class.__doc__,
    }
    return type(environment_class.__name__, (environment_class,), more)


def _options(
    environment_class: type[Environment], options_class: type[Config], values: Mapping[str, JsonValue]
) -> Config:
    try:
        return make_options(options_class, values)
    except InputError as error:
        raise listed(f"--options of {environment_class.name}", error.problems) from error


def tasks_of(
    environment_class: type[Environment],
    *,
    options: Mapping[str, JsonValue],
    split: str = "train",
    task_file: Path | None = None,
    seed: int = 0,
) -> Iterator[Task]:
    """The requested tasks, each with a unique id and the name of its environment."""
    if task_file is None:
        made = _made(environment_class, _options(environment_class, environment_class.Options, options), split, seed)
    else:
        if wrong := [name for name in options if name not in environment_class.Settings.model_fields]:
            raise InputError(
                f"--options {wrong[0]} cannot be combined with --task-file: the tasks are those of {task_file}"
            )
        made = read_tasks(task_file, environment_class.name)
    for task in _distinct(made, environment_class.name if task_file is None else str(task_file)):
        yield task if task.environment else task.model_copy(update={"environment": environment_class.name})


def _made(environment_class: type[Environment], options: Config, split: str, seed: int) -> Iterator[Task]:
    """The environment's own tasks. Any exception in its code is a EnvironmentFailedError."""
    try:
        for task in environment_class.tasks(options, split=split, seed=seed):
            if not isinstance(task, Task):
                raise EnvironmentFailedError(
                    f"tasks yielded a value of type {type(task).__name__}; it must yield bough.Task objects"
                )
            to_json(task)  # Python accepts half a surrogate pair as text, a file does not
            yield task
    except BoughError:
        raise
    except (Exception, SystemExit) as error:
        raise blame("tasks", error) from error


def _distinct(tasks: Iterable[Task], source: str) -> Iterator[Task]:
    """The tasks without those that repeat an earlier one. A different task with the same id gets a number: `id-2`."""
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
            if in_a_row >= MAX_REPEATED:  # an endless generator may have no other tasks
                return
    finally:
        if repeated:
            count = plural(repeated, "task repeats an earlier one and is", "tasks repeat an earlier one and are")
            log.warning("%s: %s skipped", source, count)


def digest(task: Task) -> str:
    """A digest of everything that fixes the task's start; unchanged after writing and reading the task."""
    content = {"environment": task.environment, "seed": task.seed, "data": task.data}
    plain = json.dumps(json.loads(to_json(content)), sort_keys=True)
    return text_digest(plain, size=8)


def identity(task: Task, *, by_content: bool = False) -> str:
    """What two tasks have in common that are the same, whichever split or file they come from.

    Tasks of one family are the same. An environment's ids may fix the start of its tasks; the ids of a file
    are its author's names, and with `by_content` they matter only where a task has nothing else.
    """
    family = task_family(task)
    if family is not None:
        return f"family {family}"
    content = digest(task.model_copy(update={"environment": None}))
    return content if by_content and (task.data or task.seed is not None) else f"{task.id} {content}"


def is_for_training(task: Task, *, by_content: bool = False) -> bool:
    """Whether a task is for training, where the same tasks serve training and selection: about half of them are.

    A digest of its family, its id or (`by_content`) its content decides, not the order, a seed or other tasks:
    no task, family or content is on both sides.
    """
    named = identity(task, by_content=by_content) if by_content or task_family(task) is not None else task.id
    return int(text_digest(named, size=8), 16) % 2 == 0


def task_family(task: Task) -> str | None:
    """The family of the task, where its data name one: tasks that vary one scenario."""
    named = task.data.get("family")
    return str(named) if isinstance(named, str | int) and not isinstance(named, bool) else None


def first_tasks(tasks: Iterator[Task], count: int) -> list[Task]:
    """The first `count` tasks, or as many as there are. No task at all is an InputError."""
    chosen = list(islice(tasks, count))
    if not chosen:
        raise InputError("no task matches these settings")
    return chosen


# Tasks from a JSON Lines file.
# A row is a task as it stands in a trajectory (`{"id": …, "seed": …, "data": {…}}`), or any object: then it is the
# task's data itself, and the task is named by its content.


def read_tasks(path: Path, environment: str) -> Iterator[Task]:
    """The tasks of a file, or of the shards of a folder, in order. A bad row is an InputError with its place."""
    for file in files(path):
        place = f"{file}"
        try:
            for number, content in lines(file):
                if isinstance(content, bytes) and not content.strip():
                    continue
                place = f"{file}:{number}"
                row = parse(content)
                if isinstance(row.get("data"), dict) and isinstance(row.get("id"), str):
                    yield Task.model_validate({**row, "environment": environment})
                else:
                    yield Task(id=str(row.get("id") or json_digest(row, size=6)), environment=environment, data=row)
                place = f"{file}"
        except ValidationError as error:
            raise InputError(f"{place}: {row_error(error)}") from None
        except RowError as error:
            raise InputError(f"{place}: {error}") from None
