"""One record as its page shows it, found again by its place in a file, `FILE:LINE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bough.disk import open_file
from bough.errors import RowError
from bough.formats.base import Sample
from bough.types import Call, Group, Message, Pair, Trajectory, Turn
from bough.viewer.branches import Branch, branches
from bough.viewer.credit import Credit, group_credit, trajectory_credit
from bough.viewer.index import Index
from bough.viewer.queries import lines_of_task, neighbours
from bough.viewer.rows import fetch
from bough.viewer.spoken import label, parts
from bough.viewer.summaries import goal

IMAGE_TYPES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}
MAX_IMAGE = 20 << 20
# Of the prompt of a turn that is not part of the conversation.
MAX_MESSAGES = 40


class MissingError(Exception):
    """Nothing has that name. The message is shown on the page."""


def place(at: str) -> tuple[str, int]:
    """The file and the line that `FILE:LINE` names."""
    file, _, line = at.rpartition(":")
    if not file or not (line.isascii() and line.isdigit() and len(line) < 10):
        raise MissingError("a record is named as FILE:LINE")
    return file, int(line)


def find(index: Index, at: str) -> Sample:
    """The record at a place that the index knows. Raises MissingError."""
    file, line = place(at)
    rows = index.query(
        "SELECT records.offset, length FROM records JOIN files ON files.id = records.file "
        "WHERE files.path = ? AND records.line = ?",
        (file, line),
    )
    if not rows:
        raise MissingError("there is no such record on file (or it is not indexed yet)")
    try:
        return fetch(index.root.path / file, line, rows[0]["offset"], rows[0]["length"])
    except RowError as error:
        raise MissingError(f"the record cannot be read any more: {error}") from None


def find_trajectory(index: Index, at: str, attempt: int | None = None) -> Trajectory:
    """A trajectory, or the numbered attempt of a group."""
    record = find(index, at)
    if isinstance(record, Group):
        if attempt is None or not 0 <= attempt < len(record.attempts):
            raise MissingError(f"the group has the attempts 0 to {len(record.attempts) - 1}")
        return record.attempts[attempt]
    if not isinstance(record, Trajectory):
        raise MissingError("the record is a pair, not a trajectory")
    return record


def show(index: Index, at: str, attempt: int | None = None) -> dict[str, Any]:
    """A trajectory, an attempt or a pair with its neighbours; token ids are sent separately."""
    record, (file, line) = find(index, at), place(at)
    if isinstance(record, Pair):
        return {"kind": "pair", "at": at, "beside": neighbours(index, file, line, "pair"), **_pair(record)}
    if isinstance(record, Group):
        trajectory = find_trajectory(index, at, attempt)
        credit = group_credit(index, file, record)[attempt or 0]
        beside = {"attempts": len(record.attempts), "attempt": attempt}
        return {"kind": "trajectory", "at": at, "beside": beside, "group": at, **_trajectory(trajectory, credit)}
    several = len(lines_of_task(index, file, record.task.id)) > 1
    return {
        "kind": "trajectory",
        "at": at,
        "beside": neighbours(index, file, line, "trajectory"),
        "siblings": several,
        **_trajectory(record, trajectory_credit(index, file, record)),
    }


def image(index: Index, at: str, number: int, attempt: int | None = None) -> tuple[bytes, str]:
    """A screenshot that a trajectory names, with its type. Only pictures, only from inside the folder."""
    names = _images(find_trajectory(index, at, attempt))
    if not 0 <= number < len(names):
        raise MissingError("the trajectory has no such picture")
    base = (index.root.path / place(at)[0]).parent
    path = index.root.inside(base / names[number])
    if path is None:
        raise MissingError("there is no such picture in the folder")
    with open_file(path) as stream:
        content = stream.read(MAX_IMAGE + 1)
    if len(content) > MAX_IMAGE:
        raise MissingError("the picture is too large")
    kind = next((kind for magic, kind in IMAGE_TYPES.items() if content.startswith(magic)), None)
    if kind is None:
        raise MissingError("the file is not a picture")
    return content, kind


def _trajectory(record: Trajectory, credit: Credit) -> dict[str, Any]:
    values = zip(record.turns, branches(record), credit.weights, credit.advantages, strict=True)
    return {
        "id": record.id,
        "task": record.task.model_dump(mode="json", exclude={"data"}),
        "goal": goal(record.start),
        "start": [_message(message) for message in record.start],
        "turns": [
            _turn(turn) | _left(turn, branch) | {"weight": weight, "advantage": advantage}
            for turn, branch, weight, advantage in values
        ],
        "credit": credit.source,
        "tools": record.tools,
        "rewards": record.rewards,
        "success": record.success,
        "stop": record.stop,
        "info": {key: value for key, value in record.info.items() if key != "images"},
        "images": _image_turns(_images(record)),
    }


def _pair(record: Pair) -> dict[str, Any]:
    chosen, rejected = record.chosen, record.rejected
    shared = 0
    while shared < min(len(chosen), len(rejected)) and _same(chosen[shared], rejected[shared]):
        shared += 1
    return {
        "task": record.task.model_dump(mode="json", exclude={"data"}),
        "goal": goal(record.start),
        "start": [_message(message) for message in record.start],
        "shared": [_turn(turn) for turn in chosen[:shared]],
        "chosen": [_turn(turn) for turn in chosen[shared:]],
        "rejected": [_turn(turn) for turn in rejected[shared:]],
        "reason": record.reason,
        "margin": record.margin,
        "info": record.info,
    }


def _turn(turn: Turn) -> dict[str, Any]:
    hidden = {"call", "reply", "correction", "observation", "prompt"}
    shown = turn.model_dump(mode="json", exclude=hidden, exclude_defaults=True)
    return shown | {
        "reply": _message(turn.reply, turn.action),
        **({"correction": _message(turn.correction)} if turn.correction is not None else {}),
        "observation": [_message(message) for message in turn.observation],
        "label": label(turn),
        "trained": turn.trained,
        "call": _call(turn.call) if turn.call is not None else None,
    }


def _left(turn: Turn, branch: Branch | None) -> dict[str, Any]:
    """How a turn leaves the conversation, with the messages of its prompt that no earlier turn shows."""
    if branch is None or turn.prompt is None:
        return {}
    new = turn.prompt[branch.num_shared :]
    return {
        "branch": {
            "kind": branch.kind,
            "turn": branch.turn,
            "messages": [_message(message) for message in new[:MAX_MESSAGES]],
            "left_out": max(0, len(new) - MAX_MESSAGES),
        }
    }


def _message(message: Message, action: str | None = None) -> dict[str, Any]:
    """A message; of an assistant's, the parts instead of the text that they were taken from."""
    if message.role != "assistant":
        return message.model_dump(mode="json", exclude_defaults=True)
    shown = message.model_dump(mode="json", exclude={"content", "reasoning", "tool_calls"}, exclude_defaults=True)
    return shown | {"parts": parts(message, action)}


def _call(call: Call) -> dict[str, Any]:
    values = call.logprobs
    return {
        "prompt_tokens": len(call.prompt_ids),
        "completion_tokens": len(call.completion_ids),
        "logprob": sum(values) if values else None,
        "finish": call.finish,
        "policy": call.policy,
    }


def _same(left: Turn, right: Turn) -> bool:
    return left.reply == right.reply and left.observation == right.observation


def _images(record: Trajectory) -> list[str]:
    names = record.info.get("images")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _image_turns(names: list[str]) -> list[dict[str, Any]]:
    """The turn after which each picture was taken: the number in its file name, 0 for the start."""
    stems = [Path(name).stem[:20] for name in names]
    return [{"number": i, "turn": int(stem) if stem.isdecimal() else i} for i, stem in enumerate(stems)]
