"""Any OpenAI-compatible server as an engine: vLLM, SGLang, llama.cpp, `transformers serve`, OpenAI itself.

Servers differ in what they understand. The engine asks for all it would like to have
(exact tokens above all), and what a server refuses by name is not asked of it again. A
server that gives no token ids gives answers without a call.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from bough.calls.template import ChatTemplate
from bough.config.sampling import SamplingConfig
from bough.engines.base import Answer, ContextFullError, EngineError
from bough.engines.chat import mix
from bough.engines.http import RequestRefusedError, Server, ServerLimits
from bough.engines.wire import conversation, read_answer
from bough.errors import InputError, did_you_mean
from bough.types import Message

log = logging.getLogger(__name__)

# What a server may refuse without harm, and what it then does not give.
WISHES = {
    "return_token_ids": "exact tokens",
    "logprobs": "log-probabilities",
    "seed": "repeatable answers",
    "skip_special_tokens": "special tokens in the text",
    "include_stop_str_in_output": "the stop text at the end of an answer",
}
# How servers say that a conversation is too long: vLLM and OpenAI, SGLang, llama.cpp, TGI.
FULL = re.compile(
    r"maximum context length|context_length_exceeded|longer than the (maximum model|model's context) length"
    r"|exceed_context_size|exceeds the available context|exceeds the (model's )?(maximum )?context"
    r"|tokens \+ `?max_new_tokens`? must be",
    re.IGNORECASE,
)


class OpenAIEngine:
    """Chats with a server over /chat/completions.

    `template` is the served model's own, where it is at hand: with it the text of a call is
    the tokenizer's, and tools reach models whose template does not know them. Temperature
    and top-p are always sent, the rest of the sampling only if it is set: a server may
    have defaults of its own for those (vLLM takes them from the model's folder).
    """

    def __init__(
        self,
        url: str,
        model: str = "",
        sampling: SamplingConfig | None = None,
        *,
        template: ChatTemplate | None = None,
        key_variable: str = "OPENAI_API_KEY",
        limits: ServerLimits | None = None,
    ) -> None:
        self.server = Server(url, key_variable=key_variable, limits=limits)
        self.name, self.sampling, self.template = model, sampling or SamplingConfig(), template
        self._refused: set[str] = set()
        self._tool_choice: str | None = None
        self._longest = "max_tokens"

    async def check(self) -> None:
        """Refuses to start where the server cannot be reached, refuses the key or does not know the model.

        Without a model's name the server's only one is taken.
        """
        known = await list_models(self.server)
        self.name = choose_model(self.name, known, self.server.url)

    def open(self, episode: str, *, seed: int) -> OpenAIChat:  # noqa: ARG002 (servers know no episodes)
        return OpenAIChat(self, seed)

    async def close(self) -> None:
        await self.server.close()

    async def complete(
        self, messages: list[Message], tools: list[dict[str, Any]], seed: int, sampling: SamplingConfig | None = None
    ) -> Answer:
        """One chat completion, with what the server refuses left out."""
        sampling = sampling or self.sampling
        path = "/chat/completions"
        while True:
            body = self._body(messages, tools, seed, sampling)
            try:
                response = await self.server.post(path, body)
            except RequestRefusedError as refusal:
                if context_is_full(refusal):
                    raise ContextFullError(f"the conversation is too long for {self.name}: {refusal.words}") from None
                if not self._learn(refusal, body):
                    raise
                continue
            answer = read_answer(response, template=self.template, where=f"{self.server.url}{path}")
            if answer.call is None:
                return answer
            return replace(answer, call=answer.call.model_copy(update={"temperature": sampling.temperature}))

    def _body(
        self, messages: list[Message], tools: list[dict[str, Any]], seed: int, sampling: SamplingConfig
    ) -> dict[str, Any]:
        written, offered = conversation(messages, tools, self.template)
        wishes: dict[str, Any] = {
            # Some servers keep seeds in 32 bits, and not all of them without a sign.
            "seed": seed % (1 << 31),
            "logprobs": True,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }
        if sampling.stop:
            wishes["include_stop_str_in_output"] = True
        body: dict[str, Any] = {
            "model": self.name,
            "messages": written,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self._longest: sampling.max_new_tokens,
            **{key: value for key, value in wishes.items() if key not in self._refused},
        }
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.min_p:
            body["min_p"] = sampling.min_p
        if sampling.stop:
            body["stop"] = sampling.stop
        if offered:
            body["tools"] = offered
            if self._tool_choice:
                body["tool_choice"] = self._tool_choice
        return body

    def _learn(self, refusal: RequestRefusedError, body: dict[str, Any]) -> bool:
        """Whether the refusal names something that can be asked differently."""
        if refusal.status not in (400, 422):
            return False
        words = refusal.words
        named = {key for key in body if re.search(rf"\b{key}\b", words)}
        if "max_completion_tokens" in words and "max_tokens" in named:
            self._longest = "max_completion_tokens"
            return True
        if "tools" in body and "tool_choice" not in body and "tool-call-parser" in words:
            # vLLM without a tool parser: the model sees the tools, and its calls stay in its text.
            self._tool_choice = "none"
            return True
        if unmet := named & {"top_k", "min_p", "temperature", "top_p", "stop"}:
            raise InputError(
                f"the server at {self.server.url} does not take {' and '.join(sorted(unmet))} as set: {words}"
            )
        new = named & set(WISHES)
        # Another call may have learned the same meanwhile: then this one is only sent again.
        for key in new - self._refused:
            log.warning("The server at %s does not know %s: no %s.", self.server.url, key, WISHES[key])
        self._refused |= new
        return bool(new)


class OpenAIChat:
    """One episode's chat. The server keeps what it likes of it; we send the whole conversation each time."""

    def __init__(self, engine: OpenAIEngine, seed: int) -> None:
        self.engine, self.seed = engine, seed
        self._answers = 0

    async def answer(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]],
        *,
        sampling: SamplingConfig | None = None,
        seed: int | None = None,
        on_text: Callable[[str], None] | None = None,  # noqa: ARG002  the server's reply comes whole
    ) -> Answer:
        drawn = mix(self.seed, self._answers) if seed is None else seed
        answer = await self.engine.complete(messages, tools, drawn, sampling)
        self._answers += 1
        return answer

    def close(self) -> None:
        return


def context_is_full(refusal: RequestRefusedError) -> bool:
    """Whether a server means that the conversation is too long."""
    return refusal.status in (400, 413, 422) and bool(FULL.search(refusal.words))


async def list_models(server: Server) -> dict[str, dict[str, Any]]:
    """What the server says of each model it serves."""
    try:
        listed = await server.get("/models")
    except RequestRefusedError as refusal:
        if refusal.status in (401, 403):
            raise InputError(str(refusal)) from None
        raise InputError(f"there is no OpenAI-compatible server at {server.url}: {refusal.words}") from None
    data = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(data, list):
        raise EngineError(f"{server.url}/models answered without a list of models")
    return {entry["id"]: entry for entry in data if isinstance(entry, dict) and isinstance(entry.get("id"), str)}


def choose_model(wanted: str, known: Iterable[str], where: str) -> str:
    """`wanted`, if the server has it; its only model, if none is wanted."""
    known = list(known)
    if not wanted and len(known) == 1:
        return known[0]
    if not wanted:
        raise InputError(f"{where} serves {len(known)} models; name one of them: {', '.join(known[:20])}")
    # An empty list says nothing: some servers load what they are asked for.
    if known and wanted not in known:
        raise InputError(f"{where} does not serve {wanted!r}{did_you_mean(wanted, known[:20])}")
    return wanted
