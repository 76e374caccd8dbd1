"""One record as its page shows it, found again by its place in a file, `FILE:LINE`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from bough.chat import tool_calls
from bough.chat.tool_calls import MalformedError
from bough.config.parts import leaves
from bough.curation.advantages import group_advantages
from bough.data.base import Sample
from bough.environments.rubric import score
from bough.errors import BoughError, InputError, RowError
from bough.experiments.recipe import read_settings
from bough.files import open_file, text_digest
from bough.report.viewer.contents import fetch, goal
from bough.report.viewer.index import Index, lines_of_task, neighbours
from bough.types import Call, Group, Message, Pair, ToolCall, Trajectory, Turn

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


# Turns that are not part of the conversation: where each leaves it.
# An agent of its own (`bough serve`, `--agent`) may ask twice with one prompt, resume an earlier reply in another
# way, rewrite its history, or have a sub-agent. Each such turn has a prompt of its own; what it shares with earlier
# turns says which of these it is.

Kind = Literal["same_prompt", "branch", "rewritten_history", "sub_agent"]


@dataclass(frozen=True)
class Branch:
    """`turn` is the index of the turn that it shares most with, if any; `num_shared` counts the prompt's messages
    that are shown there already.
    """

    kind: Kind
    turn: int | None = None
    num_shared: int = 0


def branches(record: Trajectory) -> list[Branch | None]:
    """For each turn of a trajectory how it leaves the conversation; None for those that are part of it."""
    start = _digests(record.start)
    opening = next((_key(message) for message in record.start if message.role != "system"), None)
    asked: dict[str, int] = {}
    replied: dict[str, int] = {}
    conversation = start[-1]
    found: list[Branch | None] = []
    for number, turn in enumerate(record.turns):
        prompt = [conversation] if turn.prompt is None else _digests(turn.prompt)
        if turn.prompt is None:
            found.append(None)
        else:
            found.append(_branch(turn.prompt, prompt, start, asked, replied, opening))
        asked.setdefault(prompt[-1], number)
        after = _extended(prompt[-1], turn.reply)
        replied.setdefault(after, number)
        if turn.prompt is None:
            conversation = after
            for message in turn.observation:
                conversation = _extended(conversation, message)
    return found


def _branch(
    messages: Sequence[Message],
    prompt: list[str],
    start: list[str],
    asked: dict[str, int],
    replied: dict[str, int],
    opening: str | None,
) -> Branch:
    if (same := asked.get(prompt[-1])) is not None:
        return Branch("same_prompt", same, len(messages))
    for place in range(len(prompt) - 1, 0, -1):
        if (turn := replied.get(prompt[place])) is not None:
            return Branch("branch", turn, place)
    first = next((_key(message) for message in messages if message.role != "system"), None)
    if first is not None and first == opening and len(messages) > 1:
        shared = sum(mine == theirs for mine, theirs in zip(prompt[1:], start[1:], strict=False))
        return Branch("rewritten_history", num_shared=shared)
    return Branch("sub_agent")


def _digests(messages: Sequence[Message]) -> list[str]:
    """The digests of the beginnings of a conversation: of no message, of the first, of the first two, …"""
    found = [""]
    for message in messages:
        found.append(_extended(found[-1], message))
    return found


def _extended(conversation: str, message: Message) -> str:
    return text_digest(f"{conversation} {_key(message)}", size=16)


def _key(message: Message) -> str:
    return message.model_dump_json(exclude={"hint"}, exclude_defaults=True)


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
    found = [_text("thought", message.reasoning)] if message.reasoning else []
    found += _spoken(message.content, action)
    found += [_spoken_call(call) for call in message.tool_calls]
    return [part for part in found if part["kind"] == "call" or part["text"]]


def label(turn: Turn) -> str:
    """What a turn did, on one line: its calls if it has any, else its action."""
    found = parts(turn.reply, turn.action)
    calls = [_written(part) if part["kind"] == "call" else part["text"] for part in found if "call" in part["kind"]]
    said = turn.reply.content if turn.action is None else turn.action
    return " ".join(("; ".join(calls) or said)[:MAX_LABEL].split())


def _spoken(content: str, action: str | None) -> list[Part]:
    content = content.strip()
    if len(content) > MAX_PARSED:
        return [_text("reply", content)]
    if tool_calls.OPEN in content:
        return _with_calls(content)
    if content.startswith("<think>") and (action is None or content != action.strip()):
        # What follows the last end: a reply may think more than once, and each copy of the rest takes time.
        thought, ended, rest = content.removeprefix("<think>").rpartition("</think>")
        return [_text("thought", thought), *_lines(rest.strip(), action)] if ended else [_text("thought", rest)]
    return _lines(content, action)


def _with_calls(content: str) -> list[Part]:
    try:
        said = tool_calls.parse(content)
    except MalformedError:
        before, tag, rest = content.partition(tool_calls.OPEN)
        return [_text("thought", before), _text("broken call", tag + rest)]
    answer = [_text("reply", said.action)] if not said.calls else []
    return [_text("thought", said.thought), *answer, *map(_spoken_call, said.calls)]


def _lines(content: str, action: str | None) -> list[Part]:
    """The action itself, or `THOUGHT: …` and `ACTION: …` lines; anything else is a plain reply."""
    if action is not None and content == action.strip():
        return [_text("action", content)]
    opening = _OPENING.match(content)
    if opening is None:
        return [_text("reply", content)]
    acted = _ACTION.search(content)
    if acted is None:
        return [_text("reply", content)]
    return [_text("thought", content[opening.end() : acted.start()]), _text("action", content[acted.end() :])]


def _text(kind: str, text: str) -> Part:
    return {"kind": kind, "text": text.strip()}


def _spoken_call(call: ToolCall) -> Part:
    return {"kind": "call", "name": call.name, "arguments": call.arguments}


def _written(part: Part) -> str:
    """A call as one would write it in Python."""
    words = [f"{name}={_value(value)}" for name, value in part["arguments"].items()]
    return f"{part['name']}({', '.join(words)})"


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else f'"{value}"'


# The weight or advantage that training gives each turn, according to a training run in the folder.
# A file that a run trained on is read with that run's settings. Without one, the attempts of a group have GRPO's
# plain advantages; a lone trajectory has none.


@dataclass(frozen=True)
class Credit:
    """One value per turn, None where there is none. `source` says where they come from."""

    weights: list[float | None]
    advantages: list[float | None]
    source: str = ""


def trajectory_credit(index: Index, file: str, record: Trajectory) -> Credit:
    """The weights of a demonstration."""
    nothing: list[float | None] = [None] * len(record.turns)
    settings, stage = trained_with(index, file)
    if settings is None:
        return Credit(nothing, nothing)
    weights = [1.0 if turn.trained else 0.0 for turn in record.turns]
    if settings.get("step_weighted_loss"):
        from bough.methods.sft import step_reward, step_weights

        given = step_weights([step_reward(turn) for turn in record.turns])
        weights = [weight * one for weight, one in zip(weights, given, strict=True)]
    return Credit([*weights], nothing, f"weights as {stage} used them")


def group_credit(index: Index, file: str, group: Group) -> list[Credit]:
    """The advantages of every attempt of a group."""
    settings, stage = trained_with(index, file)
    spread: list[list[float | None]] | None = None
    source = "advantages of the rewards in this group"
    if settings is not None:
        spread, source = _as_trained(group, settings), f"advantages as {stage} used them"
    if spread is None:
        found = group_advantages([score(attempt) for attempt in group.attempts]).values
        spread = [[value] * len(attempt.turns) for value, attempt in zip(found, group.attempts, strict=True)]
    return [Credit([None] * len(values), values, source) for values in spread]


def trained_with(index: Index, file: str) -> tuple[dict[str, Any] | None, str]:
    """The settings of the newest training run in the folder that read `file`, and the run's name."""
    path = index.root.path / file
    for folder in reversed(index.contents.training):
        settings = stage_settings(index, folder)
        named = settings.get("train_file")
        own = folder == str(Path(file).parent.parent) and Path(file).parent.name == "rollouts"
        if own or (isinstance(named, str) and _is(named, path, index.root.path, folder)):
            return settings, folder
    return None, ""


def stage_settings(index: Index, folder: str) -> dict[str, Any]:
    """The settings in a stage's `config.yaml`; empty if there are none that can be read."""
    file = index.root.inside(index.root.path / folder / "config.yaml")
    try:
        found = file.stat() if file is not None else None
    except OSError:
        return {}
    return dict(_settings(file, found.st_mtime_ns, found.st_size)) if file is not None and found is not None else {}


@lru_cache(maxsize=256)
def _settings(file: Path, mtime: int, size: int) -> dict[str, Any]:  # noqa: ARG001  a file that changed is another
    try:
        return read_settings(file)[1]
    except InputError:
        return {}


def _is(named: str, path: Path, root: Path, folder: str) -> bool:
    """Whether a training file's name means `path`; runs are often started, or moved, somewhere else."""
    if os.path.normpath(root / folder / named) == os.path.normpath(path):
        return True
    tail = tuple(part for part in Path(named).parts if part != "..")
    whole = (root.name, *path.relative_to(root).parts)
    return len(tail) > 1 and (whole[-len(tail) :] == tail or tail[-len(whole) :] == whole)


def _as_trained(group: Group, settings: dict[str, Any]) -> list[list[float | None]] | None:
    from bough.methods.grpo import GRPO, GRPOConfig

    known = {key: value for key, value in settings.items() if key in leaves(GRPOConfig)}
    try:
        return GRPO(GRPOConfig(**known)).advantages(group)
    except (BoughError, RowError, ArithmeticError):
        return None


# The attempts at one task as a tree: what they share, where they diverge, which branches succeed.

MAX_STEP_TEXT = 600


@dataclass
class Node:
    """Consecutive turns that the same attempts share, and the branches that follow."""

    turns: list[Turn]
    depth: int
    attempts: list[int]
    children: list[Node] = field(default_factory=list)


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
    root = grow(attempts)
    return {
        "at": at,
        "beside": beside,
        "task": record.task.id,
        "goal": goal(attempts[0].start),
        "attempts": described,
        "flat": found.dropped,
        "turns": sum(len(attempt.turns) for attempt in attempts),
        "distinct": _count(root),
        "root": _shown(root),
    }


def grow(attempts: list[Trajectory]) -> Node:
    """The tree. Two attempts share a node as long as their replies and observations are the same."""
    root = Node([], 0, list(range(len(attempts))))
    _extend(root, attempts)
    return root


def _extend(node: Node, attempts: list[Trajectory]) -> None:
    """Gives `node` the turns that all of its attempts share, then one child for each different next turn."""
    pending = [node]
    while pending:
        here = pending.pop()
        depth = here.depth + len(here.turns)
        while here.attempts:
            ways: dict[tuple[Any, ...], list[int]] = {}
            for number in here.attempts:
                turns = attempts[number].turns
                if depth < len(turns):
                    ways.setdefault(_turn_key(turns[depth]), []).append(number)
            if len(ways) != 1 or len(next(iter(ways.values()))) != len(here.attempts):
                break
            here.turns.append(attempts[here.attempts[0]].turns[depth])
            depth += 1
        for numbers in ways.values() if here.attempts else ():
            child = Node([attempts[numbers[0]].turns[depth]], depth, numbers)
            here.children.append(child)
            pending.append(child)


def _turn_key(turn: Turn) -> tuple[Any, ...]:
    """A turn's reply and observation as a dictionary key."""
    messages = (turn.reply, *turn.observation)
    return tuple((one.role, one.content, one.hint, one.reasoning, repr(one.tool_calls)) for one in messages)


def _count(root: Node) -> int:
    total, pending = 0, [root]
    while pending:
        node = pending.pop()
        total += len(node.turns)
        pending += node.children
    return total


def _shown(root: Node) -> list[dict[str, Any]]:
    """The nodes as a flat list, parents first: a deep tree must not be deep JSON."""
    rows: list[dict[str, Any]] = []
    pending: list[tuple[Node, int | None]] = [(root, None)]
    while pending:
        node, parent = pending.pop()
        number = len(rows)
        rows.append(
            {"parent": parent, "depth": node.depth, "attempts": node.attempts, "steps": [_step(t) for t in node.turns]}
        )
        pending += [(child, number) for child in reversed(node.children)]
    return rows


def _step(turn: Turn) -> dict[str, Any]:
    seen = " ".join(message.content for message in turn.observation)
    return {
        "action": label(turn),
        "observation": seen[:MAX_STEP_TEXT],
        "error": turn.error,
        "reward": turn.reward,
    }
