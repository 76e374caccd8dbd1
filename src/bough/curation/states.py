"""When two attempts are in the same state: same task, same start, and the same done and seen since.

What was done is the action, not the words around it: two replies that argue differently
for one action lead to the same state, though to different histories.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise

from pydantic_core import to_json

from bough.speech.hermes import reply_text
from bough.types import Message, Task, Trajectory, Turn

State = str
# How a household says that a command did nothing, where nobody marked it as an error.
NOTHING = "Nothing happens."


def did(turn: Turn) -> str:
    """What was done in a turn; a reply without an action is all there is."""
    return turn.action if turn.action is not None else reply_text(turn.reply)


def without_effect(turn: Turn) -> bool:
    """Whether the world could not act on the reply, and so is as it was."""
    said = "\n".join(message.content for message in turn.observation).strip()
    return turn.error is not None or said.startswith(NOTHING)


def task_key(trajectory: Trajectory) -> State:
    """The same for attempts that can be compared: one task, seen in the same words, with the same tools."""
    return _digest(_identity(trajectory.task), trajectory.start, trajectory.tools)


def states(trajectory: Trajectory) -> list[State]:
    """The world's state before each turn, and after the last."""
    found = [task_key(trajectory)]
    for turn in trajectory.turns:
        after = _digest(found[-1], did(turn), _seen(turn.observation)) if not without_effect(turn) else found[-1]
        found.append(after)
    return found


def first_difference(left: Sequence[Turn], right: Sequence[Turn]) -> int:
    """How many turns the two begin with that are alike in every message."""
    return _common(((t.reply, t.observation) for t in left), ((t.reply, t.observation) for t in right))


def shared_actions(left: Sequence[Turn], right: Sequence[Turn]) -> int:
    """How many actions the two begin with in common."""
    return _common(map(did, left), map(did, right))


def actions(turns: Iterable[Turn]) -> tuple[str, ...]:
    """What was done, in order."""
    return tuple(map(did, turns))


def gained(turns: Sequence[Turn]) -> bool:
    """Whether the task got any further within `turns`, as far as the world tells."""
    known = [turn.progress for turn in turns if turn.progress is not None]
    return any(after > before for before, after in pairwise(known))


def _identity(task: Task) -> tuple[str | None, str, int | None]:
    return task.environment, task.id, task.seed


def _seen(observation: Sequence[Message]) -> list[Message]:
    # Ids of tool calls are drawn anew each time and say nothing about the world.
    return [message.model_copy(update={"tool_call_id": None}) for message in observation]


def _common(left: Iterable[object], right: Iterable[object]) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


def _digest(*parts: object) -> State:
    return hashlib.blake2b(to_json(parts), digest_size=16).hexdigest()
