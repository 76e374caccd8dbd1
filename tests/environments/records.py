"""Trajectories with just what a reward looks at."""

from typing import Any

from bough.types import Call, Message, Task, Trajectory, Turn


def turn(*, tool: bool = False, tokens: int | None = None, **more: Any) -> Turn:
    """A turn; with a tool's answer, or a call of so many tokens."""
    call = None if tokens is None else Call(prompt_ids=[1], completion_ids=[2] * tokens)
    observation = [Message(role="tool" if tool else "user", content="ok")]
    return Turn(reply=Message(role="assistant", content="x"), call=call, observation=observation, **more)


def trajectory(*turns: Turn, **more: Any) -> Trajectory:
    start = [Message(role="user", content="Begin.")]
    return Trajectory(**{"id": "a", "task": Task(id="t"), "start": start, "turns": list(turns)} | more)
