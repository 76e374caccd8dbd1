"""Tasks from a JSON Lines file.

A row is a task as it stands in a trajectory (`{"id": …, "seed": …, "data": {…}}`), or
any object: then it is the task's data itself, and the task is named by its content.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from bough.digest import json_digest
from bough.errors import InputError, RowError
from bough.formats.base import Row, row_error
from bough.plural import plural
from bough.trajectories.lines import files, lines
from bough.trajectories.reader import parse
from bough.types import Task

log = logging.getLogger(__name__)
Place = tuple[str, int]  # file and line


def read_tasks(path: Path, environment: str) -> Iterator[Task]:
    """The tasks of a file, or of the shards of a folder, in order. A bad row is an InputError with its place.

    A row that repeats an earlier one is skipped; two different tasks with the same id are an InputError.
    """
    seen: dict[str, tuple[Place, str]] = {}
    repeated: list[Place] = []
    for place, task in _rows(path, environment):
        content = json_digest(task, size=16)
        first, known = seen.setdefault(task.id, (place, content))
        if first == place:
            yield task
        elif known == content:
            repeated.append(place)
        else:
            where = f"line {first[1]}" if first[0] == place[0] else f"{first[0]}:{first[1]}"
            raise InputError(
                f"{place[0]}:{place[1]}: the id {task.id!r:.100} is also the id of another task, in {where}; "
                "every task needs an id of its own"
            )
    if repeated:
        file, line = repeated[0]
        count = plural(len(repeated), "row repeats an earlier one and is", "rows repeat an earlier one and are")
        log.warning("%s: %s skipped, line %d first", file, count, line)


def _rows(path: Path, environment: str) -> Iterator[tuple[Place, Task]]:
    for file in files(path):
        try:
            for number, content in lines(file):
                if isinstance(content, bytes) and not content.strip():
                    continue
                try:
                    task = _task(parse(content), environment)
                except RowError as error:
                    raise InputError(f"{file}:{number}: {error}") from None
                yield (str(file), number), task
        except RowError as error:
            raise InputError(f"{file}: {error}") from None


def _task(row: Row, environment: str) -> Task:
    if isinstance(row.get("data"), dict) and isinstance(row.get("id"), str):
        try:
            return Task.model_validate({**row, "environment": environment})
        except ValidationError as error:
            raise row_error(error) from None
    digest = json_digest(row, size=6)
    return Task(id=str(row.get("id") or digest), environment=environment, data=row)
