"""The attempts at one task as a tree: what they share, where they diverge, which branches succeed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bough.curation.advantages import group_advantages
from bough.environments.rubric import score
from bough.report.viewer.contents import goal
from bough.report.viewer.index import Index
from bough.report.viewer.queries import lines_of_task, neighbours
from bough.report.viewer.records import MissingError, find, find_trajectory, label, place
from bough.types import Group, Trajectory, Turn

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
                    ways.setdefault(_key(turns[depth]), []).append(number)
            if len(ways) != 1 or len(next(iter(ways.values()))) != len(here.attempts):
                break
            here.turns.append(attempts[here.attempts[0]].turns[depth])
            depth += 1
        for numbers in ways.values() if here.attempts else ():
            child = Node([attempts[numbers[0]].turns[depth]], depth, numbers)
            here.children.append(child)
            pending.append(child)


def _key(turn: Turn) -> tuple[Any, ...]:
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
