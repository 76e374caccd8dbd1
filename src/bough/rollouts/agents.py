"""Agents: a model, the environment's expert, or random actions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Protocol

from bough.config.groups import AgentConfig, SamplingConfig
from bough.engines.base import Answer, Chat, Engine
from bough.engines.load import load_engine
from bough.environments.base import Environment
from bough.environments.isolated import Isolated
from bough.errors import BoughError, InputError
from bough.types import Message

# How an episode ends, or why a turn has no label, where the environment's expert has no advice.
NO_EXPERT = "no_expert"


class NoAdviceError(BoughError):
    """The environment has an expert, but not for this task or not in this state."""


class Agent(Protocol):
    """Plays episodes. `name` is how records name it."""

    @property
    def name(self) -> str: ...

    def enter(self, environment: Isolated, *, episode: str, seed: int) -> Chat:
        """Begins one episode."""

    async def close(self) -> None:
        """Releases what the agent holds."""


@dataclass(frozen=True)
class ModelAgent:
    """A model. It sees messages only."""

    engine: Engine

    @property
    def name(self) -> str:
        return self.engine.name

    def enter(self, environment: Isolated, *, episode: str, seed: int) -> Chat:  # noqa: ARG002
        return self.engine.open(episode, seed=seed)

    async def close(self) -> None:
        await self.engine.close()


def model_engine(agent: Any) -> Engine | None:
    """The engine of an agent that is a model, or that stands in for one; None for other agents."""
    while not isinstance(agent, ModelAgent) and hasattr(agent, "agent"):
        agent = agent.agent
    return agent.engine if isinstance(agent, ModelAgent) else None


async def make_agent(config: AgentConfig, sampling: SamplingConfig) -> Agent:
    """The agent that the settings name."""
    if config.model == ExpertAgent.name:
        return ExpertAgent()
    if config.model == RandomAgent.name:
        return RandomAgent()
    return ModelAgent(await load_engine(config, sampling))


class ExpertAgent:
    """The environment's own expert."""

    name = "expert"

    def enter(self, environment: Isolated, *, episode: str, seed: int) -> Chat:  # noqa: ARG002
        environment_class = environment.environment_class
        if environment_class.expert is Environment.expert:
            raise InputError(f"{environment_class.name} has no expert; give a model (--model)")
        return _ExpertChat(environment)

    async def close(self) -> None:
        return


class RandomAgent:
    """Takes one of the possible actions, each with the same probability."""

    name = "random"

    def enter(self, environment: Isolated, *, episode: str, seed: int) -> Chat:
        return _RandomChat(environment, random.Random(f"{seed} {episode}"))  # noqa: S311  no secret

    async def close(self) -> None:
        return


@dataclass
class _ExpertChat:
    environment: Isolated

    async def answer(self, messages: list[Message], tools: list[dict[str, Any]]) -> Answer:  # noqa: ARG002
        reply = await self.environment.expert()
        if reply is None:
            raise NoAdviceError(f"the expert has no advice for task {self.environment.task.id}")
        return Answer(Message(role="assistant", content=reply), None, "stop")

    def close(self) -> None:
        return


@dataclass
class _RandomChat:
    environment: Isolated
    rng: random.Random

    async def answer(self, messages: list[Message], tools: list[dict[str, Any]]) -> Answer:  # noqa: ARG002
        choices = await self.environment.choices()
        if not choices:
            raise InputError(
                f"{self.environment.environment_class.name} does not list its possible actions (choices), which the "
                "random agent needs"
            )
        action = self.rng.choice(sorted(choices))
        return Answer(Message(role="assistant", content=await self.environment.say(action)), None, "stop")

    def close(self) -> None:
        return
