"""knowlyr's rows: demonstrations (SFT), preferences (DPO) and groups of attempts (GRPO).

How a `response` (or `chosen`, or `rejected`) becomes turns is described in `steps.py`. A row is
written with `steps` where its replies are thoughts and actions and as text where not.
GRPO's `step_rewards` are the rewards of the turns, one each; beside a response that stays one
reply, several of them have no turn to belong to and are kept in the attempt's `info`.
"""

from __future__ import annotations

from typing import Any

from bough.errors import RowError
from bough.formats.base import Format, Row, Sample, field, finite, optional, reader, rest, typed
from bough.formats.columns import (
    ENDING,
    TASK,
    given,
    name,
    read_ending,
    read_pair,
    read_task,
    read_trajectory,
    write_ending,
    write_id,
    write_task,
)
from bough.formats.faithful import expect, faithful
from bough.formats.steps import read_steps, read_text, write_steps, write_text
from bough.types import Group, Message, Pair, Task, Trajectory


@reader
def read_sft(row: Row) -> Trajectory:
    """A demonstration: `instruction`, `input`, and `steps` or a `response`."""
    instruction, given_input = field(row, "instruction", str), optional(row, "input", str)
    if row.get("steps"):
        own, turns = "steps", read_steps(row["steps"])
    else:
        own, turns = "response", read_text(field(row, "response", str), '"response"')
    trajectory = read_trajectory(row, _asked(instruction, given_input), turns, "instruction", "input", own)
    if not given_input:
        return trajectory
    # They form one message; they are also kept separately, so that they can be written separately again.
    data = {**trajectory.task.data, "instruction": instruction, "input": given_input}
    return trajectory.model_copy(update={"task": trajectory.task.model_copy(update={"data": data})})


def write_sft(record: Sample) -> Row:
    """The row of a trajectory."""
    trajectory = expect(record, Trajectory, "knowlyr-sft")
    instruction, given_input, task = _parted(trajectory)
    steps = write_steps(trajectory.turns)
    row = {
        "instruction": instruction,
        "input": given_input,
        **({"steps": steps} if steps else {"response": write_text(trajectory.turns)}),
        **write_task(task),
        **write_id(trajectory),
        **write_ending(trajectory),
        **trajectory.info,
    }
    return faithful("knowlyr-sft", record, row, read_sft)


@reader
def read_dpo(row: Row) -> Pair:
    """A preference: `prompt`, `chosen`, `rejected`, and the margin (`reward_margin`)."""
    start = _asked(field(row, "prompt", str))
    chosen, rejected = (read_text(field(row, side, str), f'"{side}"') for side in ("chosen", "rejected"))
    return read_pair(row, start, chosen, rejected, "prompt", "chosen", "rejected", margin="reward_margin")


def write_dpo(record: Sample) -> Row:
    """The row of a pair."""
    pair = expect(record, Pair, "knowlyr-dpo")
    row = {
        "prompt": pair.start[-1].content,
        "chosen": write_text(pair.chosen),
        "rejected": write_text(pair.rejected),
        **write_task(pair.task),
        **given(reward_margin=pair.margin, reason=pair.reason),
        **pair.info,
    }
    return faithful("knowlyr-dpo", record, row, read_dpo)


@reader
def read_grpo(row: Row) -> Group:
    """Attempts at one task: `prompt` and `trajectories` of `response`, `reward`, `step_rewards`."""
    start = _asked(field(row, "prompt", str))
    task = read_task(row, start)
    attempts = field(row, "trajectories", list)
    if not attempts:
        raise RowError("missing_field", '"trajectories" is empty; a group needs at least one attempt')
    return Group(
        task=task,
        attempts=[_read_attempt(attempt, i, start, task) for i, attempt in enumerate(attempts)],
        info=rest(row, "prompt", "trajectories", *TASK),
    )


def write_grpo(record: Sample) -> Row:
    """The row of a group."""
    group = expect(record, Group, "knowlyr-grpo")
    row = {
        **write_task(group.task),
        "prompt": group.attempts[0].start[-1].content,
        "trajectories": [_write_attempt(attempt, i) for i, attempt in enumerate(group.attempts)],
        **group.info,
    }
    return faithful("knowlyr-grpo", record, row, read_grpo)


def matches_dpo(row: Row) -> bool:
    """TRL has the same three columns; its texts come without `reward_margin` and `task_id`, its rest as messages."""
    sides = row.get("chosen") is not None or row.get("rejected") is not None
    named = row.get("reward_margin") is not None or row.get("task_id") is not None
    return sides and named and isinstance(row.get("prompt"), str)


def _asked(instruction: str, given_input: str | None = None) -> list[Message]:
    """The start: the instruction, then the input if there is one."""
    return [Message(role="user", content=f"{instruction}\n\n{given_input}" if given_input else instruction)]


def _parted(trajectory: Trajectory) -> tuple[str, str, Task]:
    """Instruction and input as they were read, and the task without them."""
    match trajectory.task.data:
        case {"instruction": str(instruction), "input": str(given_input), **others} if given_input:
            if trajectory.start == _asked(instruction, given_input):
                return instruction, given_input, trajectory.task.model_copy(update={"data": others})
    return trajectory.start[-1].content, "", trajectory.task


def _read_attempt(value: Any, i: int, start: list[Message], task: Task) -> Trajectory:
    attempt: Row = typed(value, dict, f"trajectories[{i}]")
    where = f"trajectories[{i}] "
    turns = read_text(field(attempt, "response", str, where), f'{where}"response"')
    rewards = optional(attempt, "step_rewards", list, where) or []
    scores = [r if r is None else finite(r, f"{where}step_rewards[{j}]") for j, r in enumerate(rewards)]
    own = ["id", "response", *ENDING]
    if len(scores) == len(turns):
        turns = [turn.model_copy(update={"reward": score}) for turn, score in zip(turns, scores, strict=True)]
        own.append("step_rewards")
    elif scores and len(turns) > 1:
        raise RowError("wrong_length", f"{where}has {len(scores)} step_rewards for {len(turns)} steps")
    return Trajectory(
        id=name(attempt, "id", where) or _attempt_id(task, i),
        task=task,
        start=start,
        turns=turns,
        **read_ending(attempt, where),
        info=rest(attempt, *own),
    )


def _attempt_id(task: Task, i: int) -> str:
    return f"{task.id}/{i}"


def _write_attempt(attempt: Trajectory, i: int) -> Row:
    rewards = [turn.reward for turn in attempt.turns]
    scored = any(reward is not None for reward in rewards)
    return {
        **({} if attempt.id == _attempt_id(attempt.task, i) else {"id": attempt.id}),
        "response": write_text(attempt.turns),
        **write_ending(attempt),
        **given(step_rewards=rewards if scored else None),
        **attempt.info,
    }


FORMATS = [
    Format(
        name="knowlyr-grpo",
        about="knowlyr GRPO: prompt and trajectories of response, reward, step_rewards",
        matches=lambda row: row.get("trajectories") is not None,
        read=read_grpo,
        write=write_grpo,
    ),
    Format(
        name="knowlyr-sft",
        about="knowlyr SFT: instruction, input, and steps or a response",
        matches=lambda row: "instruction" in row and (row.get("steps") is not None or row.get("response") is not None),
        read=read_sft,
        write=write_sft,
    ),
    Format(
        name="knowlyr-dpo",
        about="knowlyr DPO: prompt, chosen, rejected as text, with reward_margin or task_id",
        matches=matches_dpo,
        read=read_dpo,
        write=write_dpo,
    ),
]
