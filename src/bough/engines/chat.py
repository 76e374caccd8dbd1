"""From conversations to tokens and back, for engines that know only tokens.

The tokens a model wrote stay as they are: where the template shows an earlier reply to
the letter, the next prompt continues with the exact ids that were sampled, however a
tokenizer would split that text. Where the template rewrites history, the prompt is
what it then says, and shares less with the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from copy import copy
from typing import TYPE_CHECKING, Any, Self, cast

from bough.chat.template import ChatTemplate, Encoder, GrowingPrompt, read_reply
from bough.config.groups import SamplingConfig
from bough.engines.base import Answer, Generated, SharingEngine, TokenEngine
from bough.types import Call, Message

if TYPE_CHECKING:
    from bough.policy.policy import Policy

# A prompt of up to about this many characters is made on the event loop, which takes about 0.1 s at most.
MAX_ON_LOOP = 100_000
# What a template writes around a message, roughly.
AROUND = 50


class TemplateEngine:
    """An `Engine` made of a token engine and a chat template.

    `scorer` is the policy whose weights the tokens come from, where they are in this
    process: it can say what it thinks of the calls afterwards.
    """

    def __init__(
        self,
        tokens: TokenEngine,
        template: ChatTemplate,
        sampling: SamplingConfig,
        scorer: Policy | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.tokens, self.template, self.sampling, self.scorer = tokens, template, sampling, scorer
        self.name = name or template.name
        # For large prompts, one after the other: each may need much memory.
        self.aside = ThreadPoolExecutor(1, "bough-prompts")

    def open(self, episode: str, *, seed: int) -> TemplateChat:
        return TemplateChat(self, (episode, seed))

    def over(self, tokens: TokenEngine) -> Self:
        """The same engine on another token engine."""
        other = copy(self)
        other.tokens = tokens
        return other

    async def close(self) -> None:
        await self.tokens.close()


class TemplateChat:
    """A conversation as tokens: that of one episode, or of several that have said the same so far.

    `players` are the names of the episodes and their seeds.
    """

    def __init__(self, engine: TemplateEngine, *players: tuple[str, int]) -> None:
        self.engine, self.players = engine, list(players)
        self._encoder, self._prompts = Encoder(engine.template.control), GrowingPrompt(engine.template)
        self._text = ""
        self._ids: list[int] = []
        self._answers = 0

    def part(self, places: Sequence[int]) -> TemplateChat:
        """The conversation of some of the episodes, from here on."""
        if len(places) == len(self.players):
            return self
        other = copy(self)
        other.players = [self.players[place] for place in places]
        other._encoder = Encoder(self.engine.template.control)
        other._prompts = copy(self._prompts)
        return other

    async def answer(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]],
        *,
        sampling: SamplingConfig | None = None,
        seed: int | None = None,
    ) -> Answer:
        ((episode, own_seed),) = self.players
        sampling = sampling or self.engine.sampling
        text, prompt = await self._prompt(messages, tools)
        seed = mix(own_seed, self._answers) if seed is None else seed
        stop_ids = self.engine.template.stop_ids
        drawn = await self.engine.tokens.generate(episode, prompt, sampling=sampling, seed=seed, stop_ids=stop_ids)
        return self._heard(text, prompt, drawn, sampling, tools)

    async def answers(
        self, messages: list[Message], tools: list[dict[str, Any]]
    ) -> AsyncGenerator[tuple[list[int], Answer, TemplateChat]]:
        """Each distinct reply as it is complete, with the places of those who gave it, and their chat from then on.

        What several say is decoded and read once.
        """
        sampling, tokens = self.engine.sampling, cast("SharingEngine", self.engine.tokens)
        text, prompt = await self._prompt(messages, tools)
        each = tokens.generate_each(
            [episode for episode, _ in self.players],
            prompt,
            sampling=sampling,
            seeds=[mix(seed, self._answers) for _, seed in self.players],
            stop_ids=self.engine.template.stop_ids,
        )
        async with aclosing(each):
            async for places, drawn in each:
                chat = self.part(places)
                yield places, chat._heard(text, prompt, drawn, sampling, tools), chat

    async def _prompt(self, messages: list[Message], tools: list[dict[str, Any]]) -> tuple[str, list[int]]:
        template = self.engine.template

        def encoded() -> tuple[str, list[int]]:
            text = self._prompts.text(messages, tools)
            if self._text and text.startswith(self._text):
                return text, self._ids + template.control.encode(text[len(self._text) :])
            return text, self._encoder.encode(text)

        if _is_large(self._prompts.new(messages, tools), tools):
            return await asyncio.get_running_loop().run_in_executor(self.engine.aside, encoded)
        return encoded()

    def _heard(
        self, text: str, prompt: list[int], drawn: Generated, sampling: SamplingConfig, tools: list[dict[str, Any]]
    ) -> Answer:
        """The reply in what was drawn; the next prompt continues with its tokens."""
        template = self.engine.template
        self._answers += 1
        ids = drawn.completion_ids
        ended = bool(ids) and ids[-1] == template.end_of_turn_id
        said = template.without_end(ids)
        written = template.decode(said)
        # As the next prompt would show it: what the model wrote is text, whichever tokens it wrote it with.
        self._text = text + template.control.escape(written, reply=True) + (template.end_of_turn if ended else "")
        # Where another token ended the reply, the next prompt has the template's in its place.
        self._ids = prompt + (ids if ended else said)
        call = Call(
            prompt_ids=[],  # ours, and long: set below without being checked or copied again
            completion_ids=ids,
            logprobs=drawn.logprobs,
            logprobs_temperature=drawn.logprobs_temperature,
            temperature=sampling.temperature,
            text=written,
            finish=drawn.finish,
            policy=drawn.policy or self.engine.tokens.policy,
        )
        call.__dict__["prompt_ids"] = prompt
        if tools:
            reply = read_reply(template, written, place=len(prompt))
        else:
            reply = Message(role="assistant", content=written)
        return Answer(reply, call, drawn.finish, len(prompt), len(ids))

    def close(self) -> None:
        for episode, _ in self.players:
            self.engine.tokens.release(episode)


def _is_large(messages: list[Message], tools: list[dict[str, Any]]) -> bool:
    """Whether a prompt has more than about `MAX_ON_LOOP` characters; found without looking at all of a large one."""
    left = MAX_ON_LOOP - AROUND * (len(messages) + sum(len(one.tool_calls) for one in messages))
    values: list[Any] = [tools]
    for one in messages:
        values += one.content, one.hint, one.reasoning, one.name, one.tool_call_id
        values += (part for call in one.tool_calls for part in (call.id, call.name, call.arguments))
    while values and left >= 0:
        value = values.pop()
        if isinstance(value, int):
            left -= value.bit_length()  # more than it has digits, of which it may have thousands
        elif isinstance(value, str | list | dict):
            left -= len(value)
            if left >= 0 and not isinstance(value, str):
                values += [*value, *value.values()] if isinstance(value, dict) else value
    return left < 0


def mix(seed: int, answer: int) -> int:
    """A seed for each answer of an episode, the same in any process."""
    return (seed * 0x9E3779B97F4A7C15 + answer * 0xBF58476D1CE4E5B9 + 1) % (1 << 63)
