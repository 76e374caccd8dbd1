"""A vLLM server as a token engine: prompts go as token ids, answers come back as token ids.

Started, for example, with

    VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve MODEL --enable-lora --max-loras 2

(without LoRA if no adapter will be loaded). Adapters are named by folder, so the server
must see the same disk.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from bough.config.sampling import SamplingConfig
from bough.engines.base import ContextFullError, EngineError, Generated
from bough.engines.http import RequestRefusedError, Server, ServerLimits
from bough.engines.openai import choose_model, context_is_full, list_models
from bough.engines.vllm import adapter_rank, drawing, finish_of
from bough.engines.wire import LogprobError, read_choice, read_tokens
from bough.errors import InputError


class VLLMServerEngine:
    """A model on a running vLLM server. `context` is how many tokens prompt and answer may have together."""

    def __init__(self, server: Server, model: str, context: int) -> None:
        self.server, self.policy = server, model
        self._served, self._context = model, context
        self._adapters: list[str] = []

    @classmethod
    async def load(
        cls, url: str, model: str = "", *, key_variable: str = "OPENAI_API_KEY", limits: ServerLimits | None = None
    ) -> VLLMServerEngine:
        """Finds the server's model, the only one if none is named.

        Raises InputError for a server that is not vLLM, or whose log-probabilities are not the model's own.
        """
        server = Server(url, key_variable=key_variable, limits=limits)
        known = await list_models(server)
        model = choose_model(model, known, server.url)
        context = known.get(model, {}).get("max_model_len")
        if not isinstance(context, int):
            raise InputError(f"the server at {server.url} is not vLLM: it does not report its context length")
        engine = cls(server, model, context)
        await engine._check_logprobs()
        return engine

    async def generate(
        self,
        episode: str,  # noqa: ARG002 (the server finds shared prefixes)
        prompt_ids: list[int],
        *,
        sampling: SamplingConfig,
        seed: int,
        stop_ids: list[int],
    ) -> Generated:
        asked = drawing(sampling, seed, stop_ids, self._context - len(prompt_ids))
        prompt, ids, logprobs, finish = await self._complete(prompt_ids, asked)
        if prompt != prompt_ids:
            raise EngineError(f"{self.server.url} changed the prompt: {len(prompt)} tokens, not {len(prompt_ids)}")
        return Generated(ids, logprobs, finish_of(finish))

    async def load_adapter(self, folder: str | Path, policy: str | None = None) -> None:
        """From the next answer on, the adapter in `folder` speaks; `policy` is its name in the records."""
        adapter_rank(Path(folder))  # a folder without an adapter is said here, not by the server
        # A new name each time: neither this server's cache nor an earlier run may stand behind it.
        name = f"{Path(policy or folder).name}-{uuid.uuid4().hex[:8]}"
        try:
            await self._order("/load_lora_adapter", {"lora_name": name, "lora_path": str(Path(folder).absolute())})
        except RequestRefusedError as refusal:
            if refusal.status != 404:
                raise EngineError(f"the server cannot load the adapter {folder}: {refusal.words}") from None
            raise InputError(
                f"the server at {self.server.url} takes no adapters; "
                "start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora --max-loras 2"
            ) from None
        self._served, self.policy = name, policy or str(folder)
        self._adapters.append(name)
        # The previous adapter may still be in use by pending answers; the one before it is not.
        for old in self._adapters[:-2]:
            await self._order("/unload_lora_adapter", {"lora_name": old})
        del self._adapters[:-2]

    def release(self, episode: str) -> None:
        """Nothing is kept per episode: the server evicts its own prefix cache."""

    async def close(self) -> None:
        await self.server.close()

    async def _complete(
        self, prompt_ids: list[int], asked: dict[str, Any]
    ) -> tuple[list[int], list[int], list[float], str | None]:
        body = {"model": self._served, "prompt": prompt_ids, "logprobs": 0, "return_token_ids": True} | asked
        try:
            response = await self.server.post("/completions", body)
        except RequestRefusedError as refusal:
            if context_is_full(refusal):
                raise ContextFullError(f"the conversation is too long for {self.policy}: {refusal.words}") from None
            raise
        choice = read_choice(response, self.server.url)
        try:
            tokens = read_tokens(response, choice)
        except EngineError as error:
            raise type(error)(f"{self.server.url}: {error}") from None
        if tokens is None or tokens[2] is None:
            raise EngineError(f"{self.server.url} answered without tokens and log-probabilities; vLLM gives them")
        return *tokens[:2], tokens[2], choice.get("finish_reason")

    async def _check_logprobs(self) -> None:
        """The model's own log-probabilities of the likeliest tokens are the same however those were drawn."""
        plain = SamplingConfig(temperature=0, max_new_tokens=4)
        cut = SamplingConfig(temperature=2, top_k=1, max_new_tokens=4)
        try:
            draws = [(await self._complete([1, 2, 3], drawing(sampling, 0, [], 4)))[2] for sampling in (plain, cut)]
            same = all(abs(a - b) <= 0.01 for a, b in zip(*draws, strict=False))
        except LogprobError:  # logits, perhaps
            same = False
        if not same:
            raise InputError(
                f"the server at {self.server.url} gives other log-probabilities than the model's own; "
                "start it with --logprobs-mode raw_logprobs"
            )

    async def _order(self, path: str, body: dict[str, Any]) -> None:
        """A request that is answered in words, not in JSON."""
        await self.server.post(path, body, json_answer=False)
