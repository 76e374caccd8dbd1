"""Small records whose numbers can be checked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bough.data.writer import Writer
from bough.types import Call, Group, Message, Pair, Task, Trajectory, Turn

GOAL = "You are in a room.\n\nYour task is to: put a mug in shelf."


def turn(action: str, seen: str = "Done.", **more: Any) -> Turn:
    reply = Message(role="assistant", content=f"THOUGHT: I try.\nACTION: {action}")
    return Turn(reply=reply, action=action, observation=[Message(role="user", content=seen)], **more)


def trajectory(name: str, actions: list[str], success: bool | None = True, **more: Any) -> Trajectory:
    """An attempt, `TASK#NUMBER`, with one turn for each action."""
    values: dict[str, Any] = {
        "id": name,
        "task": Task(id=name.partition("#")[0], environment="household", data={"type": "pick"}),
        "start": [Message(role="system", content="Be brief."), Message(role="user", content=GOAL)],
        "turns": [turn(action) for action in actions],
        "rewards": {"outcome": None if success is None else float(success)},
        "success": success,
        "stop": "done" if success else "max_turns",
        "info": {"agent": "tiny"},
    }
    return Trajectory(**(values | more))


def pair(chosen: list[str], rejected: list[str], reason: str = "loop", **more: Any) -> Pair:
    return Pair(
        task=Task(id="a", environment="household"),
        start=[Message(role="user", content=GOAL)],
        chosen=[turn(action) for action in chosen],
        rejected=[turn(action) for action in rejected],
        reason=reason,
        **more,
    )


def group(*attempts: Trajectory) -> Group:
    return Group(task=attempts[0].task, attempts=list(attempts))


def call(prompt: list[int], completion: list[int], logprobs: list[float] | None = None) -> Call:
    return Call(prompt_ids=prompt, completion_ids=completion, logprobs=logprobs, finish="stop")


def write(file: Path, *records: Trajectory | Pair | Group) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with Writer(file) as writer:
        for record in records:
            writer.write(record)
    return file
