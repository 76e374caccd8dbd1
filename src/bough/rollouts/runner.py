"""Where episodes are played: in this process, or elsewhere behind the same protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bough.config.rollouts import LimitsConfig
from bough.engines.base import Chat
from bough.environments.base import Environment
from bough.environments.isolated import Isolated
from bough.rollouts.agents import Agent
from bough.rollouts.attempt import Attempt
from bough.rollouts.episode import play
from bough.types import Trajectory

Images = list[tuple[int, bytes]]


class Runner(Protocol):
    """Plays attempts, many at the same time."""

    async def play(self, attempt: Attempt, *, episode: str | None = None) -> tuple[Trajectory, Images]:
        """Plays one attempt; returns its record and the images of its observations, each with its turn.

        `episode` is its name in the engine, by default the attempt's id. Raises
        EnvironmentFailedError or EngineError if environment or engine failed: that says nothing
        about the agent, and the attempt may be played again.
        """


@dataclass(frozen=True)
class LocalRunner:
    """Plays in this process. `agent_of` says who plays an attempt."""

    environment_class: type[Environment]
    agent_of: Callable[[Attempt], Agent]
    limits: LimitsConfig

    @classmethod
    def of(cls, environment_class: type[Environment], agent: Agent, limits: LimitsConfig) -> LocalRunner:
        """One agent plays all attempts."""
        return cls(environment_class, lambda _: agent, limits)

    async def play(self, attempt: Attempt, *, episode: str | None = None) -> tuple[Trajectory, Images]:
        agent = self.agent_of(attempt)
        return await play(
            self.environment_class,
            attempt.task,
            agent if episode is None else _Renamed(agent, episode),
            id=attempt.id,
            seed=attempt.seed,
            limits=self.limits,
            replayed=attempt.replayed,
        )


@dataclass(frozen=True)
class _Renamed:
    """An agent that enters its episode under another name."""

    agent: Agent
    episode: str

    @property
    def name(self) -> str:
        return self.agent.name

    def enter(self, environment: Isolated, *, episode: str, seed: int) -> Chat:  # noqa: ARG002
        return self.agent.enter(environment, episode=self.episode, seed=seed)

    async def close(self) -> None:
        await self.agent.close()
