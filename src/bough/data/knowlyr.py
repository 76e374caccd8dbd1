"""knowlyr's rows: demonstrations (SFT), preferences (DPO) and groups of attempts (GRPO).

How a `response` (or `chosen`, or `rejected`) becomes turns is described below. A row is written
with `steps` where its replies are thoughts and actions and as text where not.
GRPO's `step_rewards` are the rewards of the turns, one each; beside a response that stays one
reply, several of them have no turn to belong to and are kept in the attempt's `info`.
"""

from __future__ import annotations

import re
from typing import Any

from bough.data.base import (
    ENDING,
    TASK,
    Format,
    Row,
    Sample,
    expect,
    faithful,
    field,
    finite,
    given,
    name,
    number,
    optional,
    read_ending,
    read_pair,
    read_task,
    read_trajectory,
    reader,
    rest,
    typed,
    write_columns,
    write_ending,
    write_task,
)
from bough.errors import RowError
from bough.types import Group, Message, Pair, Trajectory, Turn


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
    instruction, given_input, task = trajectory.start[-1].content, "", trajectory.task
    match task.data:
        case {"instruction": str(asked), "input": str(more), **others} if more:  # as they were read
            if trajectory.start == _asked(asked, more):
                instruction, given_input, task = asked, more, task.model_copy(update={"data": others})
    steps = write_steps(trajectory.turns)
    row = {
        "instruction": instruction,
        "input": given_input,
        **({"steps": steps} if steps else {"response": write_text(trajectory.turns)}),
        **write_columns(trajectory, task),
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
    found = []
    for i, value in enumerate(attempts):
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
        id = name(attempt, "id", where) or f"{task.id}/{i}"
        ending = read_ending(attempt, where)
        found.append(Trajectory(id=id, task=task, start=start, turns=turns, **ending, info=rest(attempt, *own)))
    return Group(task=task, attempts=found, info=rest(row, "prompt", "trajectories", *TASK))


def write_grpo(record: Sample) -> Row:
    """The row of a group."""
    group = expect(record, Group, "knowlyr-grpo")
    attempts = []
    for i, attempt in enumerate(group.attempts):
        rewards = [turn.reward for turn in attempt.turns]
        scored = any(reward is not None for reward in rewards)
        written = {} if attempt.id == f"{attempt.task.id}/{i}" else {"id": attempt.id}
        written |= {"response": write_text(attempt.turns), **write_ending(attempt)}
        attempts.append({**written, **given(step_rewards=rewards if scored else None), **attempt.info})
    prompt = group.attempts[0].start[-1].content
    row = {**write_task(group.task), "prompt": prompt, "trajectories": attempts, **group.info}
    return faithful("knowlyr-grpo", record, row, read_grpo)


def _asked(instruction: str, given_input: str | None = None) -> list[Message]:
    """The start: the instruction, then the input if there is one."""
    return [Message(role="user", content=f"{instruction}\n\n{given_input}" if given_input else instruction)]


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
        # TRL has the same three columns; its texts come without `reward_margin` and `task_id`, its rest as messages.
        matches=lambda row: (
            any(row.get(side) is not None for side in ("chosen", "rejected"))
            and any(row.get(name) is not None for name in ("reward_margin", "task_id"))
            and isinstance(row.get("prompt"), str)
        ),
        read=read_dpo,
        write=write_dpo,
    ),
]


# Steps of thought, action and observation, as a list or as one text, and the turns they are.
# A step's thought and action are the reply ("Thought: …\nAction: …"), its observation is what the user says next
# ("Observation: …"). A text is steps if it begins with `Step N:`, `Thought:` or `Action:`:
#     Step 1:     Thought: Let me read the file     Action: read_file /sort.py     Observation: def sort(arr): ...
#     Step 2:     Action: edit_file /sort.py
# It becomes turns only if every step but the last has an observation. Where one has none, nothing separates two
# replies, and two replies in a row are no conversation: then the text stays what it is, one reply. So does a text
# without steps. A tag counts at the start of a line; `Step N:` only if it continues the numbering and a thought or an
# action follows, so that an observation may hold numbered steps of its own. Without `Step N:` lines, a thought or an
# action after an observation begins the next step.

_HEADER = re.compile(r"^Step ([0-9]{1,9}):\s*(?=(?:Thought|Action):)", re.MULTILINE)
_REPLY = re.compile(r"^(?=(?:Thought|Action):)", re.MULTILINE)
_OBSERVATION = re.compile(r"^Observation:", re.MULTILINE)
_STEP = re.compile(
    r"(?P<reply>(?:Thought:.*?)?(?:^Action:(?P<action>.*?))?)(?P<observation>^Observation:.*)?\Z",
    re.MULTILINE | re.DOTALL,
)


def read_steps(value: Any) -> list[Turn]:
    """The turns of a list of steps. An empty observation is an empty message; a missing one is no message."""
    steps = typed(value, list, '"steps"')
    turns = [_read_step(step, f"steps[{i}]") for i, step in enumerate(steps)]
    silent = next((i for i, turn in enumerate(turns[:-1]) if not turn.observation), None)
    if silent is not None:
        said = "only the last step may end without one"
        raise RowError("missing_field", f'steps[{silent}] "observation" is missing; {said}')
    return turns


def read_text(text: str, what: str) -> list[Turn]:
    """The turns of a text: its steps, or one reply."""
    if not text.strip():
        raise RowError("empty_completion", f"{what} is empty")
    turns = []
    for body in _bodies(text.strip()):  # verbatim, except for white space at the ends
        step = _STEP.match(body)
        assert step is not None, "any text matches"
        said = step["observation"]
        turn = Turn(
            reply=Message(role="assistant", content=step["reply"].rstrip()),
            action=(step["action"] or "").strip() or None,
            observation=[] if said is None else [Message(role="user", content=said.rstrip())],
        )
        turns.append(turn)
    if turns and all(turn.observation for turn in turns[:-1]):
        return turns
    return [Turn(reply=Message(role="assistant", content=text))]


def write_steps(turns: list[Turn]) -> list[Row] | None:
    """The turns as a list of steps; None if a reply is not a thought and an action."""
    steps = []
    for turn in turns:
        # The action is known, so it is cut from the end: a thought may contain an "Action:" line.
        head = turn.reply.content
        if turn.action:
            head = head.removesuffix(f"Action: {turn.action}").removesuffix("\n")
        thought = head.removeprefix("Thought: ")
        said = turn.observation[0].content.removeprefix("Observation:").removeprefix(" ") if turn.observation else None
        step = given(thought=thought or None, action=turn.action, observation=said, reward=turn.reward)
        if not (thought or turn.action) or _read_step(step, "step") != turn.model_copy(update={"call": None}):
            return None
        steps.append(step)
    return steps


def write_text(turns: list[Turn]) -> str:
    """The turns as one text; the caller must check that it reads back the same."""
    if len(turns) == 1 and turns[0].action is None and not turns[0].observation:
        return turns[0].reply.content
    bodies = ["\n".join(message.content for message in (turn.reply, *turn.observation)) for turn in turns]
    return "\n\n".join(f"Step {i}:\n{body}" for i, body in enumerate(bodies, 1))


def _read_step(value: Any, what: str) -> Turn:
    step: Row = typed(value, dict, what)
    thought, action, observation = (
        optional(step, key, str, f"{what} ") for key in ("thought", "action", "observation")
    )
    lines = [f"{tag}: {text}" for tag, text in (("Thought", thought), ("Action", action)) if text]
    if not lines:
        raise RowError("empty_completion", f"{what} has neither a thought nor an action")
    said = f"Observation: {observation}" if observation else "Observation:"
    return Turn(
        reply=Message(role="assistant", content="\n".join(lines)),
        action=action or None,
        observation=[] if observation is None else [Message(role="user", content=said)],
        reward=number(step, "reward", f"{what} "),
    )


def _bodies(text: str) -> list[str]:
    """The steps of a text, without their headers; none if it does not begin with one."""
    headers = list(_HEADER.finditer(text))
    if headers and headers[0].start() == 0:
        counted = headers[:1]
        for header in headers[1:]:
            if int(header[1]) == int(counted[-1][1]) + 1:
                counted.append(header)
        ends = [*(header.start() for header in counted[1:]), len(text)]
        return [text[header.end() : end] for header, end in zip(counted, ends, strict=True)]
    bodies: list[list[str]] = []
    observed = True
    for piece in _REPLY.split(text)[1:] if _REPLY.match(text) else ():
        if observed:
            bodies.append([])
        bodies[-1].append(piece)
        observed = _OBSERVATION.search(piece) is not None
    return ["".join(pieces) for pieces in bodies]
