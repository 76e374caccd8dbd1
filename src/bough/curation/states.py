"""When two attempts are in the same state: same task, same start, same actions and observations since.

Only actions count, not the words around them: two replies that give different reasons
for one action lead to the same state, though to different histories.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bough.digest import json_digest
from bough.environments.rules import MistakeRules, action_of
from bough.types import Message, Task, Trajectory, Turn

State = str


def task_key(trajectory: Trajectory) -> State:
    """Equal for attempts that can be compared: the same task, the same first messages, the same tools."""
    return _digest(_identity(trajectory.task), trajectory.start, trajectory.tools)


def states(trajectory: Trajectory, rules: MistakeRules) -> list[State]:
    """The environment's state before each turn, and after the last."""
    found = [task_key(trajectory)]
    for turn in trajectory.turns:
        stays = rules.without_effect(turn)
        found.append(found[-1] if stays else _digest(found[-1], action_of(turn), _seen(turn.observation)))
    return found


def first_difference(left: Sequence[Turn], right: Sequence[Turn]) -> int:
    """How many turns at the start are equal in every message."""
    return _common(((t.reply, t.observation) for t in left), ((t.reply, t.observation) for t in right))


def shared_actions(left: Sequence[Turn], right: Sequence[Turn]) -> int:
    """How many actions at the start are equal."""
    return _common(map(action_of, left), map(action_of, right))


def actions(turns: Iterable[Turn]) -> tuple[str, ...]:
    """What was done, in order."""
    return tuple(map(action_of, turns))


def _identity(task: Task) -> tuple[str | None, str, int | None]:
    return task.environment, task.id, task.seed


def _seen(observation: Sequence[Message]) -> list[Message]:
    # Ids of tool calls are random and say nothing about the environment.
    return [message.model_copy(update={"tool_call_id": None}) for message in observation]


def _common(left: Iterable[object], right: Iterable[object]) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


def _digest(*parts: object) -> State:
    return json_digest(parts, size=16)
