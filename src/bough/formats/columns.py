"""The fields of a record besides its messages, as columns with the same names in every format.

`id` names an episode; `task_id`, `environment`, `seed` and `task_data` say of which task;
`reward` is the reward of that name and `rewards` holds the others; `success` and `stop`
say how it ended; `reason` and `margin` why a pair's chosen side is better. Any other column
is kept in `info` and comes back from there as a column.
"""

from __future__ import annotations

from typing import Any

from bough.errors import RowError
from bough.formats.base import Row, digest, jsonable, number, optional, rest
from bough.types import Message, Pair, Task, Trajectory, Turn, conversation

TASK = ("task_id", "environment", "seed", "task_data")
ENDING = ("reward", "rewards", "success", "stop")


def read_task(row: Row, start: list[Message], unnamed: str | None = None) -> Task:
    """The task of a row. If it has no name and no `unnamed` is given, rows with the same start have the same task."""
    return Task(
        id=name(row, "task_id") or unnamed or digest(*start),
        environment=optional(row, "environment", str),
        seed=optional(row, "seed", int),
        data=jsonable(optional(row, "task_data", dict) or {}),
    )


def read_trajectory(row: Row, start: list[Message], turns: list[Turn], *own: str, **more: Any) -> Trajectory:
    """The trajectory of a row; the format itself reads the columns `own`."""
    return Trajectory(
        id=name(row, "id") or digest(*conversation(start, turns)),
        task=read_task(row, start, unnamed=name(row, "id")),
        start=start,
        turns=turns,
        **read_ending(row),
        **more,
        info=rest(row, *own, "id", *TASK, *ENDING),
    )


def read_ending(row: Row, where: str = "") -> Row:
    """How an episode ended: rewards, success and what stopped it."""
    others = optional(row, "rewards", dict, where) or {}
    rewards = {jsonable(key): number(others, key, f'{where}"rewards" ') for key in others}
    reward = number(row, "reward", where)
    return {
        "rewards": rewards if reward is None else {"reward": reward, **rewards},
        "success": optional(row, "success", bool, where),
        "stop": optional(row, "stop", str, where),
    }


def read_pair(
    row: Row,
    start: list[Message],
    chosen: list[Turn],
    rejected: list[Turn],
    *own: str,
    unnamed: str | None = None,
    margin: str = "margin",
    **more: Any,
) -> Pair:
    """The pair of a row; the format itself reads the columns `own`."""
    if [turn.reply for turn in chosen] == [turn.reply for turn in rejected]:
        raise RowError("same_reply", '"rejected" equals "chosen"; a preference pair needs two different replies')
    return Pair(
        task=read_task(row, start, unnamed),
        start=start,
        chosen=chosen,
        rejected=rejected,
        reason=optional(row, "reason", str),
        margin=number(row, margin),
        **more,
        info=rest(row, *own, "reason", margin, *TASK),
    )


def name(row: Row, key: str, where: str = "") -> str | None:
    """`row[key]` as a name: text, or a whole number as text; None if there is none."""
    value = optional(row, key, (str, int), where)
    try:
        return None if value is None or value == "" else str(value)
    except ValueError:  # Python refuses to print whole numbers of thousands of digits
        raise RowError("wrong_type", f'{where}"{key}" is a number too long for a name') from None


def write_task(task: Task) -> Row:
    """The columns that `read_task` reads."""
    return given(task_id=task.id, environment=task.environment, seed=task.seed, task_data=task.data)


def write_id(trajectory: Trajectory) -> Row:
    """The column `id`, unless it is the id that a reader would generate."""
    return {} if trajectory.id == digest(*trajectory.messages) else {"id": trajectory.id}


def write_ending(trajectory: Trajectory) -> Row:
    """The columns that `read_ending` reads."""
    rewards = dict(trajectory.rewards)
    reward = rewards.pop("reward") if rewards.get("reward") is not None else None
    return given(reward=reward, rewards=rewards, success=trajectory.success, stop=trajectory.stop)


def given(**columns: Any) -> Row:
    """The columns that are neither null nor empty."""
    return {key: value for key, value in columns.items() if value is not None and value not in ({}, [])}
