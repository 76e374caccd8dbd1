"""From a session to a trajectory.

The longest chain of calls, each continuing the one before, is the conversation. Every other
call (a branch, a sub-agent, another choice of the same request) is a turn with a prompt of
its own, at the place where it happened. All of them keep their exact tokens.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pydantic import JsonValue, ValidationError

from bough.formats.base import digest, row_error
from bough.serving.refusal import RefusedError
from bough.serving.session import RecordedCall, Session, prompt_of
from bough.types import Task, Trajectory, Turn


@dataclass(frozen=True)
class SessionOutcome:
    """How a session ended. `rewards` has the outcome, if it is known, and whatever else was measured."""

    success: bool | None = None
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    stop: str = "done"
    task: Task | None = None


def read_outcome(row: Mapping[str, Any]) -> SessionOutcome:
    """What a client says at the end of a session. Raises RefusedError where it is wrong."""
    if unknown := sorted(row.keys() - {"success", "reward", "task"}):
        raise RefusedError(400, f"{unknown[0]} is not known here; give success, reward and task", param=unknown[0])
    success, reward = row.get("success"), row.get("reward")
    if success not in (None, True, False) or isinstance(success, int) is not isinstance(success, bool):
        raise RefusedError(400, "success must be true or false", param="success")
    return SessionOutcome(success, _rewards(success, reward), task=_task(row.get("task")))


def _rewards(success: bool | None, reward: Any) -> dict[str, float | None]:
    if reward is None:
        return {"outcome": None if success is None else float(success)}
    try:
        number = float(reward) if isinstance(reward, int | float) and not isinstance(reward, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RefusedError(400, "reward must be a finite number", param="reward")
    return {"outcome": number}


def _task(given: Any) -> Task | None:
    if given is None:
        return None
    try:
        return Task(id=given) if isinstance(given, str) else Task.model_validate(given)
    except ValidationError as error:
        raise RefusedError(400, f"task must be its id or a task: {row_error(error)}", param="task") from None


def trajectory_of(session: Session, outcome: SessionOutcome, *, agent: str, id: str | None = None) -> Trajectory:
    """The record of a session that has at least one call, under its name unless another `id` is given."""
    calls = session.calls
    chain = _longest_chain(calls)
    on_chain = set(chain)
    follows = _first_followers(calls) | dict(pairwise(chain))
    first = calls[chain[0]]
    tools: list[dict[str, JsonValue]] = list(first.tools)
    turns = [
        Turn(
            reply=call.reply,
            call=call.call,
            error=call.error,
            observation=calls[follows[call.number]].messages if call.number in follows else [],
            prompt=None if call.number in on_chain else prompt_of(calls, call),
            tools=None if call.number in on_chain or call.tools == tools else list(call.tools),
        )
        for call in calls
    ]
    info: dict[str, JsonValue] = {
        "agent": agent,
        "prompt_tokens": sum(call.num_prompt_tokens for call in calls),
        "completion_tokens": sum(call.num_completion_tokens for call in calls),
    }
    if rewritten := sum(call.rewritten for call in calls):
        info["rewritten_prompts"] = rewritten
    return Trajectory(
        id=id or session.name,
        # Attempts that start alike are attempts at one task, unless the client knows better.
        task=outcome.task or Task(id=digest(*first.messages)),
        start=first.messages,
        turns=turns,
        tools=tools,
        rewards=dict(outcome.rewards),
        success=outcome.success,
        stop=outcome.stop,
        info=info,
    )


def _longest_chain(calls: list[RecordedCall]) -> list[int]:
    """The numbers of the calls of the longest chain; of equal ones the earliest."""
    length = [1] * len(calls)
    best: dict[int, int] = {}
    for call in reversed(calls):
        if call.parent is not None and length[call.number] + 1 >= length[call.parent]:
            length[call.parent], best[call.parent] = length[call.number] + 1, call.number
    roots = [call.number for call in calls if call.parent is None]
    at: int | None = max(roots, key=lambda number: (length[number], -number))
    chain = []
    while at is not None:
        chain.append(at)
        at = best.get(at)
    return chain


def _first_followers(calls: list[RecordedCall]) -> dict[int, int]:
    """For each call the first that continues it."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for call in calls:
        if call.parent is not None:
            found[call.parent].append(call.number)
    return {parent: min(numbers) for parent, numbers in found.items()}
