"""Agents that sometimes get it right."""

import random
from dataclasses import dataclass
from typing import Any

from bough.engines.base import Answer
from bough.environments.isolated import Isolated
from bough.types import Message


@dataclass
class NoisyExpert:
    """The world's expert, but with probability `noise` any possible action instead, by the episode's seed."""

    noise: float = 0.5
    name: str = "noisy"

    def enter(self, environment: Isolated, *, episode: str, seed: int) -> "_NoisyChat":
        return _NoisyChat(environment, random.Random(f"{seed} {episode}"), self.noise)

    async def close(self) -> None:
        return


@dataclass
class _NoisyChat:
    environment: Isolated
    rng: random.Random
    noise: float

    async def answer(self, messages: list[Message], tools: list[dict[str, Any]]) -> Answer:
        if self.rng.random() < self.noise:
            reply = await self.environment.say(self.rng.choice(sorted(await self.environment.choices())))
        else:
            reply = await self.environment.expert() or ""
        return Answer(Message(role="assistant", content=reply), None, "stop")

    def close(self) -> None:
        return
