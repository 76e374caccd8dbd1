"""The summary of a record: the values that lists show, filter, sort and search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bough.evaluation.outcomes import TYPE_KEYS
from bough.formats.base import Sample
from bough.rewards.score import score
from bough.speech import hermes
from bough.types import Group, Message, Pair, Task, Trajectory, Turn

# Only this much of a record's text can be searched.
MAX_TEXT = 40_000
MAX_WORD = 300
OPENINGS = ("your task is to:", "task:", "goal:", "question:")


@dataclass(frozen=True)
class Summary:
    """What a list shows. `success` is None where it is unknown, and for pairs; `text` is for searching."""

    kind: str
    name: str
    task: str
    type: str | None
    environment: str | None
    success: bool | None
    reward: float | None
    turns: int
    tokens: int
    stop: str | None
    reason: str | None
    agent: str | None
    errors: int
    preview: str
    text: str


def summarise(record: Sample) -> Summary:
    """The summary of `record`."""
    if isinstance(record, Trajectory):
        return _trajectory(record)
    return _pair(record) if isinstance(record, Pair) else _group(record)


def goal(start: list[Message]) -> str:
    """What the agent was asked, on one line: the line that names a task, else the last line of the first message."""
    said = [message.content for message in start if message.role != "system"] or [m.content for m in start]
    lines = [line.strip() for text in said[:1] for line in text.splitlines() if line.strip()]
    for line in lines:
        for opening in OPENINGS:
            if line.lower().startswith(opening) and len(line) > len(opening) + 1:
                asked = line[len(opening) :].strip()
                return _cut(asked[0].upper() + asked[1:])
    return _cut(lines[-1]) if lines else ""


def _trajectory(record: Trajectory) -> Summary:
    return Summary(
        kind="trajectory",
        name=_cut(record.id),
        success=record.success,
        reward=score(record),
        turns=len(record.turns),
        tokens=sum(len(turn.call.completion_ids) for turn in record.turns if turn.call is not None),
        stop=_word(record.stop),
        reason=_word(record.info.get("reason") or record.info.get("rule")),
        agent=_word(record.info.get("agent")),
        errors=sum(turn.error is not None for turn in record.turns),
        preview=goal(record.start),
        text=_text(record.id, record.start, record.turns),
        **_of_task(record.task),
    )


def _pair(record: Pair) -> Summary:
    return Summary(
        kind="pair",
        name=_cut(record.task.id),
        success=None,
        reward=record.margin,
        turns=len(record.chosen) + len(record.rejected),
        tokens=0,
        stop=None,
        reason=_word(record.reason),
        agent=None,
        errors=0,
        preview=goal(record.start),
        text=_text(record.task.id, record.start, [*record.chosen, *record.rejected]),
        **_of_task(record.task),
    )


def _group(record: Group) -> Summary:
    rewards = [value for attempt in record.attempts if (value := score(attempt)) is not None]
    solved = [attempt.success for attempt in record.attempts]
    turns = [turn for attempt in record.attempts for turn in attempt.turns]
    agents = dict.fromkeys(str(attempt.info["agent"]) for attempt in record.attempts if attempt.info.get("agent"))
    return Summary(
        kind="group",
        name=_cut(record.task.id),
        success=any(solved) if None not in solved or True in solved else None,
        reward=sum(rewards) / len(rewards) if rewards else None,
        turns=len(turns),
        tokens=sum(len(turn.call.completion_ids) for turn in turns if turn.call is not None),
        stop=f"{sum(value is True for value in solved)} of {len(solved)} succeed",
        reason=None,
        agent=_word(", ".join(agents) or None),
        errors=sum(turn.error is not None for turn in turns),
        preview=goal(record.attempts[0].start),
        text=_text(record.task.id, record.attempts[0].start, turns),
        **_of_task(record.task),
    )


def _of_task(task: Task) -> dict[str, Any]:
    kind = next((str(task.data[key]) for key in TYPE_KEYS if key in task.data), None)
    return {"task": _cut(task.id), "type": _word(kind), "environment": _word(task.environment)}


def _text(name: str, start: list[Message], turns: list[Turn]) -> str:
    parts, size = [name], len(name)
    messages = [*start, *(m for turn in turns for m in (turn.reply, *turn.observation))]
    for message in messages:
        for said in (message.reasoning or "", message.content, *map(hermes.call_text, message.tool_calls)):
            parts.append(said[: MAX_TEXT - size])
            size += len(parts[-1])
        if size >= MAX_TEXT:
            break
    return "\n".join(parts)


def _word(value: Any) -> str | None:
    return None if value is None else _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_WORD else text[: MAX_WORD - 1] + "…"
