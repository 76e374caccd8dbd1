"""One record as its page shows it, found again by its place in a file, `FILE:LINE`."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bough.chat import tool_calls
from bough.chat.tool_calls import MalformedError
from bough.curation.advantages import group_advantages
from bough.data.base import Sample
from bough.environments.rubric import score
from bough.errors import InputError, RowError
from bough.files import open_file
from bough.report.viewer.contents import fetch, goal
from bough.report.viewer.index import Index, lines_of_task, neighbours
from bough.types import Group, Message, Pair, Trajectory, Turn

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
    rows = index.query("SELECT offset, length FROM records WHERE file = ? AND line = ?", (file, line))
    if not rows:
        raise MissingError("there is no such record on file (or it is not indexed yet)")
    try:
        return fetch(index.root.path / file, line, rows[0]["offset"], rows[0]["length"])
    except (InputError, RowError) as error:
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
        shown = _trajectory(find_trajectory(index, at, attempt))
        advantage = group_advantages([score(one) for one in record.attempts]).values[attempt or 0]
        for turn in shown["turns"]:
            turn["advantage"] = advantage
        return {"at": at, "beside": {"attempts": len(record.attempts), "attempt": attempt}, "group": at, **shown}
    several = len(lines_of_task(index, file, record.task.id)) > 1
    beside = neighbours(index, file, line, "trajectory")
    return {"at": at, "beside": beside, "siblings": several, **_trajectory(record)}


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


def _trajectory(record: Trajectory) -> dict[str, Any]:
    turns, conversation = [], list(record.start)
    for turn in record.turns:
        turns.append(_turn(turn) | _own_prompt(turn, conversation))
        if turn.prompt is None:
            conversation += [turn.reply, *turn.observation]
    return {
        "kind": "trajectory",
        "id": record.id,
        "task": record.task.model_dump(mode="json", exclude={"data"}),
        "goal": goal(record.start),
        "start": [_message(message) for message in record.start],
        "turns": turns,
        "tools": record.tools,
        "rewards": record.rewards,
        "success": record.success,
        "stop": record.stop,
        "info": {key: value for key, value in record.info.items() if key != "images"},
        # The turn after which each picture was taken: the number in its file name, 0 for the start.
        "images": [
            {"number": i, "turn": int(stem) if stem.isdecimal() else i}
            for i, stem in enumerate(Path(name).stem[:20] for name in _images(record))
        ],
    }


def _own_prompt(turn: Turn, conversation: list[Message]) -> dict[str, Any]:
    """Of a turn outside the conversation (another reply, a branch, a sub-agent), the messages that only it was sent."""
    if turn.prompt is None:
        return {}
    pairs = zip(turn.prompt, conversation, strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    new = turn.prompt[shared:]
    shown = [_message(message) for message in new[:MAX_MESSAGES]]
    return {"branch": {"messages": shown, "left_out": max(0, len(new) - MAX_MESSAGES)}}


def _pair(record: Pair) -> dict[str, Any]:
    chosen, rejected = record.chosen, record.rejected
    same = itertools.takewhile(
        lambda both: _turn_key(both[0]) == _turn_key(both[1]), zip(chosen, rejected, strict=False)
    )
    shared = sum(1 for _ in same)
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
    call = turn.call
    return shown | {
        "reply": _message(turn.reply, turn.action),
        **({"correction": _message(turn.correction)} if turn.correction is not None else {}),
        "observation": [_message(message) for message in turn.observation],
        "label": label(turn),
        "trained": turn.trained,
        "call": call
        and {
            "prompt_tokens": len(call.prompt_ids),
            "completion_tokens": len(call.completion_ids),
            "logprob": sum(call.logprobs) if call.logprobs else None,
            "finish": call.finish,
            "policy": call.policy,
        },
    }


def _message(message: Message, action: str | None = None) -> dict[str, Any]:
    """A message; of an assistant's, the parts instead of the text that they were taken from."""
    if message.role != "assistant":
        return message.model_dump(mode="json", exclude_defaults=True)
    shown = message.model_dump(mode="json", exclude={"content", "reasoning", "tool_calls"}, exclude_defaults=True)
    return shown | {"parts": parts(message, action)}


def _images(record: Trajectory) -> list[str]:
    names = record.info.get("images")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


# A reply taken apart for the page: thoughts, tool calls, actions, and whatever else was said.
# A tool call may be structured, or written into the text in Hermes tags; pages show both the same way. A call that
# cannot be read is shown as it was written.

# A reply longer than this is not taken apart; the page shows its beginning as it is.
MAX_PARSED = 200_000
MAX_LABEL = 600
_OPENING = re.compile(r"\s*(?:THOUGHT|THINK|ACTION|ACT):", re.IGNORECASE)
_ACTION = re.compile(r"^(?:ACTION|ACT):", re.IGNORECASE | re.MULTILINE)

Part = dict[str, Any]


def parts(message: Message, action: str | None = None) -> list[Part]:
    """What a reply consists of, in order.

    Each part has a `kind`: "thought", "action", "reply" or "broken call" with a `text`,
    or "call" with a `name` and `arguments`. `action` is what the environment was given.
    """
    content, calls = message.content.strip(), list(message.tool_calls)
    found = [("thought", message.reasoning or "")]
    if tool_calls.OPEN in content and len(content) <= MAX_PARSED:
        try:
            said = tool_calls.parse(content)
        except MalformedError:
            before, tag, rest = content.partition(tool_calls.OPEN)
            found += [("thought", before), ("broken call", tag + rest)]
        else:
            found += [("thought", said.thought), ("reply", "" if said.calls else said.action)]
            calls = [*said.calls, *calls]
    else:
        found += _spoken(content, action)
    texts: list[Part] = [{"kind": kind, "text": text.strip()} for kind, text in found if text.strip()]
    return texts + [{"kind": "call", "name": call.name, "arguments": call.arguments} for call in calls]


def _spoken(content: str, action: str | None) -> list[tuple[str, str]]:
    """Reasoning in <think> tags, then the action itself or `THOUGHT: …` and `ACTION: …` lines, else a plain reply."""
    if len(content) > MAX_PARSED:
        return [("reply", content)]
    if action is not None and content == action.strip():
        return [("action", content)]
    if content.startswith("<think>"):
        # What follows the last end: a reply may think more than once, and each copy of the rest takes time.
        thought, ended, rest = content.removeprefix("<think>").rpartition("</think>")
        return [("thought", thought), *_spoken(rest.strip(), action)] if ended else [("thought", rest)]
    opening, acted = _OPENING.match(content), _ACTION.search(content)
    if opening is None or acted is None:
        return [("reply", content)]
    return [("thought", content[opening.end() : acted.start()]), ("action", content[acted.end() :])]


def label(turn: Turn) -> str:
    """What a turn did, on one line: its calls, as one would write them in Python, else its action."""
    calls = []
    for part in parts(turn.reply, turn.action):
        if part["kind"] == "call":
            values = {name: json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else f'"{value}"'
                      for name, value in part["arguments"].items()}  # fmt: skip
            calls.append(f"{part['name']}({', '.join(f'{name}={value}' for name, value in values.items())})")
        elif part["kind"] == "broken call":
            calls.append(part["text"])
    said = turn.reply.content if turn.action is None else turn.action
    return " ".join(("; ".join(calls) or said)[:MAX_LABEL].split())


# The attempts at one task as a tree: what they share, where they diverge, which branches succeed.

MAX_STEP_TEXT = 600


@dataclass
class Node:
    """Consecutive turns that the same attempts share, and the number of the node before."""

    turns: list[Turn]
    depth: int
    attempts: list[int]
    parent: int | None = None


def tree(index: Index, at: str) -> dict[str, Any]:
    """The tree of a group, or of all attempts in the file at the task of the trajectory at `at`."""
    record, (file, line) = find(index, at), place(at)
    if isinstance(record, Group):
        attempts = list(record.attempts)
        links = [{"at": at, "attempt": number} for number in range(len(attempts))]
        beside: dict[str, Any] = neighbours(index, file, line, "group")
    elif isinstance(record, Trajectory):
        places = [f"{file}:{number}" for number in lines_of_task(index, file, record.task.id)]
        attempts = [find_trajectory(index, one) for one in places]
        links = [{"at": one, "attempt": None} for one in places]
        beside = {}
    else:
        raise MissingError("a pair has no tree of attempts")
    rewards = [score(attempt) for attempt in attempts]
    found = group_advantages(rewards)
    described = [
        link | {"id": a.id, "success": a.success, "reward": reward, "advantage": advantage, "stop": a.stop,
                "turns": len(a.turns), "agent": a.info.get("agent")}
        for link, a, reward, advantage in zip(links, attempts, rewards, found.values, strict=True)
    ]  # fmt: skip
    nodes = grow(attempts)
    return {
        "at": at,
        "beside": beside,
        "task": record.task.id,
        "goal": goal(attempts[0].start),
        "attempts": described,
        "flat": found.dropped,
        "turns": sum(len(attempt.turns) for attempt in attempts),
        "distinct": sum(len(node.turns) for node in nodes),
        "root": [
            {
                "parent": node.parent,
                "depth": node.depth,
                "attempts": node.attempts,
                "steps": list(map(_step, node.turns)),
            }
            for node in nodes
        ],
    }


def grow(attempts: list[Trajectory]) -> list[Node]:
    """The tree as a flat list, parents first: a deep tree must not be deep JSON.

    Two attempts share a node as long as their replies and observations are the same.
    """
    nodes: list[Node] = []
    pending = [Node([], 0, list(range(len(attempts))))]
    while pending:
        node = pending.pop()
        nodes.append(node)
        ways: dict[tuple[Any, ...], list[int]] = {}
        while True:
            depth = node.depth + len(node.turns)
            ways.clear()
            for number in node.attempts:
                if depth < len(attempts[number].turns):
                    ways.setdefault(_turn_key(attempts[number].turns[depth]), []).append(number)
            if list(ways.values()) != [node.attempts]:
                break
            node.turns.append(attempts[node.attempts[0]].turns[depth])
        ahead = [Node([attempts[some[0]].turns[depth]], depth, some, len(nodes) - 1) for some in ways.values()]
        pending += reversed(ahead)
    return nodes


def _turn_key(turn: Turn) -> tuple[Any, ...]:
    """A turn's reply and observation as a dictionary key."""
    messages = (turn.reply, *turn.observation)
    return tuple((one.role, one.content, one.hint, one.reasoning, repr(one.tool_calls)) for one in messages)


def _step(turn: Turn) -> dict[str, Any]:
    seen = " ".join(message.content for message in turn.observation)
    return {
        "action": label(turn),
        "observation": seen[:MAX_STEP_TEXT],
        "error": turn.error,
        "reward": turn.reward,
    }
