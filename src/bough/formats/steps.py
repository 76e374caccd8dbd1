"""Steps of thought, action and observation, as a list or as one text, and the turns they are.

A step's thought and action are the reply ("Thought: …\\nAction: …"), its observation is
what the user says next ("Observation: …"). A text is steps if it begins with `Step N:`,
`Thought:` or `Action:`:

    Step 1:
    Thought: Let me read the file
    Action: read_file /sort.py
    Observation: def sort(arr): ...

    Step 2:
    Action: edit_file /sort.py

It becomes turns only if every step but the last has an observation. Where one has none,
nothing separates two replies, and two replies in a row are no conversation: then the text
stays what it is, one reply. So does a text without steps. A tag counts at the start of a line;
`Step N:` only if it continues the numbering and a thought or an action follows, so that an
observation may hold numbered steps of its own. Without `Step N:` lines, a thought or an
action after an observation begins the next step.
"""

from __future__ import annotations

import re
from typing import Any

from bough.errors import RowError
from bough.formats.base import Row, number, optional, typed
from bough.formats.columns import given
from bough.types import Message, Turn

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
    for i, turn in enumerate(turns[:-1]):
        if not turn.observation:
            raise RowError(
                "missing_field", f'steps[{i}] "observation" is missing; only the last step may end without one'
            )
    return turns


def read_text(text: str, what: str) -> list[Turn]:
    """The turns of a text: its steps, or one reply."""
    if not text.strip():
        raise RowError("empty_completion", f"{what} is empty")
    turns = [_read_body(body) for body in _bodies(text.strip())]
    if turns and all(turn.observation for turn in turns[:-1]):
        return turns
    return [Turn(reply=Message(role="assistant", content=text))]


def write_steps(turns: list[Turn]) -> list[Row] | None:
    """The turns as a list of steps; None if a reply is not a thought and an action."""
    steps = [step for turn in turns if (step := _write_step(turn))]
    return steps if len(steps) == len(turns) else None


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


def _write_step(turn: Turn) -> Row | None:
    # The action is known, so it is cut from the end: a thought may contain an "Action:" line.
    head = turn.reply.content
    if turn.action:
        head = head.removesuffix(f"Action: {turn.action}").removesuffix("\n")
    thought = head.removeprefix("Thought: ")
    said = turn.observation[0].content.removeprefix("Observation:").removeprefix(" ") if turn.observation else None
    step = given(thought=thought or None, action=turn.action, observation=said, reward=turn.reward)
    if not (thought or turn.action) or _read_step(step, "step") != turn.model_copy(update={"call": None}):
        return None
    return step


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


def _read_body(body: str) -> Turn:
    """The turn of one step's text, verbatim except for white space at its ends."""
    step = _STEP.match(body)
    assert step is not None, "any text matches"
    said = step["observation"]
    return Turn(
        reply=Message(role="assistant", content=step["reply"].rstrip()),
        action=(step["action"] or "").strip() or None,
        observation=[] if said is None else [Message(role="user", content=said.rstrip())],
    )
