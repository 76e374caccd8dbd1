"""Agents: a model, the environment's expert, or random actions."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
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

        async def reply() -> str:
            if (advice := await environment.expert()) is None:
                raise NoAdviceError(f"the expert has no advice for task {environment.task.id}")
            return advice

        return _Script(reply)

    async def close(self) -> None:
        return


class RandomAgent:
    """Takes one of the possible actions, each with the same probability."""

    name = "random"

    def enter(self, environment: Isolated, *, episode: str, seed: int) -> Chat:
        rng = random.Random(f"{seed} {episode}")  # noqa: S311  no secret

        async def reply() -> str:
            if not (choices := await environment.choices()):
                raise InputError(
                    f"{environment.environment_class.name} does not list its possible actions (choices), which the "
                    "random agent needs"
                )
            return await environment.say(rng.choice(sorted(choices)))

        return _Script(reply)

    async def close(self) -> None:
        return


@dataclass(frozen=True)
class _Script:
    """A chat without a model."""

    reply: Callable[[], Awaitable[str]]

    async def answer(self, messages: list[Message], tools: list[dict[str, Any]]) -> Answer:  # noqa: ARG002
        return Answer(Message(role="assistant", content=await self.reply()), None, "stop")

    def close(self) -> None:
        return
