"""Short episodes, written as what was done and what was seen."""

from typing import Any

from bough.curation.source import SourcedTrajectory
from bough.types import Call, Message, Task, Trajectory, Turn

START = [Message(role="system", content="Rules."), Message(role="user", content="Go.")]


def turn(action: str, seen: str = "ok", *, thought: str = "", token: int | None = None, **more: Any) -> Turn:
    """A turn that did `action` and saw `seen`; with exact tokens where `token` is given."""
    call = None if token is None else Call(prompt_ids=[1], completion_ids=[token], logprobs=[-0.5], text=action)
    return Turn(
        reply=Message(role="assistant", content=f"{thought}{action}"),
        call=call,
        action=action,
        observation=[Message(role="user", content=seen)],
        **more,
    )


def episode(
    name: str, *turns: Turn | str, success: bool | None = True, task: str = "t", **more: Any
) -> SourcedTrajectory:
    """An attempt at a task, at line 1 of a file of its name."""
    return SourcedTrajectory(
        Trajectory(
            **{
                "id": name,
                "task": Task(id=task),
                "start": START,
                "turns": [turn(one) if isinstance(one, str) else one for one in turns],
                "success": success,
            }
            | more
        ),
        f"{name}.jsonl",
        1,
    )
