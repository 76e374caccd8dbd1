"""Restores an environment to the states of a trajectory: replays its replies and checks that nothing differs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol, TypeVar

from bough.chat.tool_calls import Reply
from bough.environments.base import Observation
from bough.errors import BoughError
from bough.types import Message, Task, Trajectory


class ReplayError(BoughError):
    """The environment answered differently from when the trajectory was recorded."""


class Playable(Protocol):
    """What a replay needs of an environment; `Isolated` has it."""

    async def start(self) -> Observation: ...

    async def step(self, reply: Reply) -> Observation: ...

    async def close(self) -> None: ...


P = TypeVar("P", bound=Playable)


async def replay(make: Callable[[Task], P], trajectory: Trajectory, turns: int | None = None) -> P:
    """A fresh environment, from `make`, after the first `turns` turns of `trajectory` (default: all of them).

    Raises ReplayError at the first message that differs; the caller closes the environment.
    """
    count = len(trajectory.turns) if turns is None else turns
    assert 0 <= count <= len(trajectory.turns), f"{count} of {len(trajectory.turns)} turns"
    environment = make(trajectory.task)
    try:
        _agree(trajectory, "the start", trajectory.start, await environment.start())
        for number, turn in enumerate(trajectory.turns[:count], 1):
            observation = await environment.step(Reply.of(turn.reply))
            _agree(trajectory, f"turn {number}", turn.observation, observation)
            if observation.done and number < count:
                raise ReplayError(f"{trajectory.id}: the episode ends after turn {number}; {count} were recorded")
    except BaseException:
        await environment.close()
        raise
    return environment


async def rounds(make: Callable[[Task], P], trajectory: Trajectory) -> AsyncGenerator[tuple[int, P], None]:
    """The environment before each turn of `trajectory`, with the turn's number from 0: one replay for all of them.

    Turns with a prompt of their own are left out: the environment never saw them. The caller must
    not step it. Raises ReplayError at the first message that differs; close the iterator
    (`contextlib.aclosing`) to close the environment.
    """
    environment = make(trajectory.task)
    try:
        _agree(trajectory, "the start", trajectory.start, await environment.start())
        acted = [(at, turn) for at, turn in enumerate(trajectory.turns) if turn.prompt is None]
        for at, turn in acted:
            yield at, environment
            if at == acted[-1][0]:
                break
            observation = await environment.step(Reply.of(turn.reply))
            _agree(trajectory, f"turn {at + 1}", turn.observation, observation)
            if observation.done:
                raise ReplayError(f"{trajectory.id}: the episode ends after turn {at + 1}; more were recorded")
    finally:
        await environment.close()


def _agree(trajectory: Trajectory, where: str, recorded: Sequence[Message], observation: Observation) -> None:
    now = list(observation.messages)
    if now == list(recorded):
        return
    for index, (old, new) in enumerate(zip(recorded, now, strict=False)):
        if old != new:
            field = next(name for name in Message.model_fields if getattr(old, name) != getattr(new, name))
            was, now_ = getattr(old, field), getattr(new, field)
            raise ReplayError(
                f"{trajectory.id}: {where} differs in the {field} of message {index}: "
                f"recorded {was!r:.200}, now {now_!r:.200}"
            )
    raise ReplayError(f"{trajectory.id}: {where} had {len(recorded)} messages, now {len(now)}")
