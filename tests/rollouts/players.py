"""Agents for tests of everything around them: they say what they are told to say."""

from dataclasses import dataclass, field
from typing import Any

from bough.engines.base import Answer, ContextFullError, EngineError
from bough.environments.base import Environment
from bough.types import Call, Message


@dataclass
class Script:
    """Says these replies in order, then the last one for ever. An exception among them is raised."""

    replies: list[str | Exception]
    name: str = "script"
    seen: list[list[Message]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    closed: int = 0

    def enter(self, environment: Environment, *, episode: str, seed: int) -> "ScriptChat":
        self.seeds.append(seed)
        return ScriptChat(self)

    async def close(self) -> None:
        return


@dataclass
class ScriptChat:
    script: Script
    said: int = 0

    async def answer(self, messages: list[Message], tools: list[dict[str, Any]]) -> Answer:
        self.script.seen.append(list(messages))
        reply = self.script.replies[min(self.said, len(self.script.replies) - 1)]
        self.said += 1
        if isinstance(reply, Exception):
            raise reply
        call = Call(prompt_ids=[1, 2, 3], completion_ids=[4, 5], logprobs=[-0.5, -0.25], text=reply, finish="stop")
        return Answer(Message(role="assistant", content=reply), call, "stop", 3, 2)

    def close(self) -> None:
        self.script.closed += 1


FULL, BROKEN = ContextFullError("full"), EngineError("the server is gone")
