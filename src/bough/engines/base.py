"""What an engine is, at two altitudes.

An `Engine` talks: it opens a chat for each episode, and the chat answers conversations.
A `TokenEngine` turns token ids into token ids and log-probabilities; `engines/chat.py`
makes an `Engine` of it with the model's chat template.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bough.config.groups import SamplingConfig
from bough.errors import BoughError
from bough.types import Call, Finish, Message


@dataclass(frozen=True)
class Answer:
    """A reply. `call` has its exact tokens; it is None where a server does not give them."""

    message: Message
    call: Call | None
    finish: Finish
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0


class Chat(Protocol):
    """One episode's side of an engine. What was computed for one answer is kept for the next."""

    async def answer(self, messages: list[Message], tools: list[dict[str, Any]]) -> Answer:
        """The reply to a conversation. Raises `ContextFullError` or `EngineError`."""

    def close(self) -> None:
        """Releases the episode."""


class ModelChat(Chat, Protocol):
    """A chat with a model: each answer may be sampled in its own way."""

    async def answer(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]],
        *,
        sampling: SamplingConfig | None = None,
        seed: int | None = None,
    ) -> Answer:
        """The reply; `sampling` and `seed` replace the engine's sampling parameters and the chat's seed."""


class Engine(Protocol):
    """Something that replies. `sampling` are its sampling parameters."""

    name: str
    sampling: SamplingConfig

    def open(self, episode: str, *, seed: int) -> ModelChat:
        """A chat for one episode; `seed` fixes its replies where the engine can do that."""

    async def close(self) -> None:
        """Ends everything."""


@dataclass(frozen=True)
class Generated:
    """What was drawn. `completion_ids` end with the end-of-turn token if the model wrote it.

    `logprobs` are the log-softmax of the model's logits divided by `logprobs_temperature`,
    before top-p, top-k and min-p: at the sampling temperature from the local engine, at 1
    (the model's own) from servers. `policy` names the weights it was drawn from, `first..last`
    if they changed meanwhile; None: the engine's `policy`.
    """

    completion_ids: list[int]
    logprobs: list[float]
    finish: Finish
    policy: str | None = None
    logprobs_temperature: float = 1.0


class TokenEngine(Protocol):
    """Token ids in, token ids and log-probabilities out. `policy` names its weights."""

    @property
    def policy(self) -> str: ...

    async def generate(
        self, episode: str, prompt_ids: list[int], *, sampling: SamplingConfig, seed: int, stop_ids: list[int]
    ) -> Generated:
        """Draws an answer. Calls of one `episode` come one after the other and share what their prompts share.

        The draw depends on `seed`, the prompt and the sampling alone, whatever else is
        generated meanwhile. Raises `ContextFullError` if the prompt leaves no room.
        """

    def release(self, episode: str) -> None:
        """Forgets an episode."""

    async def close(self) -> None:
        """Shuts down; pending answers are cancelled."""


class SharingEngine(TokenEngine, Protocol):
    """A token engine that computes what several episodes have in common once."""

    def generate_each(
        self,
        episodes: Sequence[str],
        prompt_ids: list[int],
        *,
        sampling: SamplingConfig,
        seeds: Sequence[int],
        stop_ids: list[int],
    ) -> AsyncGenerator[tuple[list[int], Generated]]:
        """An answer for each episode, all with the same prompt: what `generate` draws for each.

        Gives each distinct answer as it is complete, with the places of the episodes that drew it.
        """


class ContextFullError(BoughError):
    """The conversation no longer fits the model's context."""


class EngineError(BoughError):
    """The engine failed or cannot be reached; the agent did not cause it."""
