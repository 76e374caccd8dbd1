"""Branches: replay an episode up to a turn, give another reply there, and let an agent finish.

A branch is an episode like any other, played from its start by an agent that first
repeats the recorded replies. If the environment does not answer as it did when it was
recorded, nothing that follows could be compared, and `ReplayError` is raised.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from bough.engines.base import Answer, Chat
from bough.environments.base import Environment
from bough.environments.isolated import Isolated
from bough.environments.replay import ReplayError, replay
from bough.rollouts.agents import Agent
from bough.types import Message, Trajectory, conversation

# Replays at a time: each may hold a page of a browser.
REPLAYS = 8


@asynccontextmanager
async def at_round(environment_class: type[Environment], trajectory: Trajectory, at: int) -> AsyncIterator[Isolated]:
    """The environment in its state before turn `at`, closed on exit."""
    environment = await replay(lambda task: Isolated(environment_class, task), trajectory, at)
    try:
        yield environment
    finally:
        await environment.close()


@dataclass(frozen=True)
class Branch:
    """Turn `at` of a trajectory, answered with `reply` instead."""

    trajectory: Trajectory
    at: int
    reply: Answer


class BranchAgent:
    """Plays branches, each by the id of its episode, and leaves the rest to `agent`."""

    def __init__(self, agent: Agent, branches: dict[str, Branch]) -> None:
        self.agent, self.branches = agent, branches
        self.name = agent.name

    def enter(self, environment: Isolated, *, episode: str, seed: int) -> Chat:
        return _BranchChat(self.branches[episode], self.agent.enter(environment, episode=episode, seed=seed))

    async def close(self) -> None:
        await self.agent.close()


class _BranchChat:
    def __init__(self, branch: Branch, chat: Chat) -> None:
        self.branch, self.chat, self.turn = branch, chat, 0

    async def answer(self, messages: list[Message], tools: list[dict[str, Any]]) -> Answer:
        trajectory, at = self.branch.trajectory, self.branch.at
        self.turn += 1
        if self.turn <= at:
            return Answer(trajectory.turns[self.turn - 1].reply, trajectory.turns[self.turn - 1].call, "stop")
        if self.turn == at + 1:
            if messages != conversation(trajectory.start, trajectory.turns[:at]):
                raise ReplayError(f"{trajectory.id}: the environment does not answer as it did before turn {at + 1}")
            return self.branch.reply
        return await self.chat.answer(messages, tools)

    def close(self) -> None:
        self.chat.close()
