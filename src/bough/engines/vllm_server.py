"""A vLLM server as a token engine: prompts go as token ids, answers come back as token ids.

Started, for example, with

    VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve MODEL --enable-lora --max-loras 2

(without LoRA if no adapter will be loaded). Adapters are named by folder, so the server
must see the same disk.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NoReturn

from bough.config.sampling import SamplingConfig
from bough.engines.adapters import Adapter, LoadedAdapters, adapter_rank, delete_folders
from bough.engines.base import ContextFullError, EngineError, Generated
from bough.engines.http import RequestRefusedError, Server, ServerLimits
from bough.engines.openai import choose_model, context_is_full, list_models
from bough.engines.vllm_arguments import LogprobsMode, finish_of, logprobs_temperature, sampling_arguments
from bough.engines.wire import LogprobError, read_choice, read_tokens
from bough.errors import InputError

log = logging.getLogger(__name__)


class VLLMServerEngine:
    """A model on a running vLLM server. `context` is how many tokens prompt and answer may have together."""

    def __init__(
        self, server: Server, model: str, context: int, *, logprobs_mode: LogprobsMode = "raw_logprobs"
    ) -> None:
        self.server, self.policy = server, model
        self._model, self._context, self._logprobs_mode = model, context, logprobs_mode
        self._adapters = LoadedAdapters()

    @classmethod
    async def load(
        cls,
        url: str,
        model: str = "",
        *,
        key_variable: str = "OPENAI_API_KEY",
        limits: ServerLimits | None = None,
        logprobs_mode: LogprobsMode = "raw_logprobs",
    ) -> VLLMServerEngine:
        """Finds the server's model, the only one that is not an adapter if none is named.

        Raises InputError for a server that is not vLLM, or that gives other log-probabilities than `logprobs_mode`.
        """
        server = Server(url, key_variable=key_variable, limits=limits)
        known = await list_models(server)
        models = [name for name, entry in known.items() if not entry.get("parent")]
        model = choose_model(model, known if model else models, server.url)
        context = known.get(model, {}).get("max_model_len")
        if not isinstance(context, int):
            raise InputError(f"the server at {server.url} is not vLLM: it does not report its context length")
        engine = cls(server, model, context, logprobs_mode=logprobs_mode)
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
        temperature = logprobs_temperature(self._logprobs_mode, sampling)
        asked = sampling_arguments(sampling, seed, stop_ids, self._context - len(prompt_ids))
        policy = self.policy  # another adapter may be loaded before the answer comes
        with self._adapters.using() as adapter:
            prompt, ids, logprobs, finish = await self._complete(prompt_ids, asked, adapter)
        if prompt != prompt_ids:
            raise EngineError(f"{self.server.url} changed the prompt: {len(prompt)} tokens, not {len(prompt_ids)}")
        return Generated(ids, logprobs, finish_of(finish), policy, temperature)

    async def load_adapter(self, folder: str | Path, policy: str | None = None, *, temporary: bool = False) -> None:
        """From the next answer on, samples with the adapter in `folder`; `policy` is its name in the records.

        With `temporary`, the folder is deleted when no answer uses the adapter any more.
        """
        adapter_rank(Path(folder))  # a folder without an adapter is reported here, not by the server
        adapter = self._adapters.new(folder, policy, temporary=temporary)
        body = {"lora_name": adapter.name, "lora_path": str(adapter.folder)}
        try:
            await self._order("/load_lora_adapter", body)
        except RequestRefusedError as refusal:
            # The name is new, so the adapter was loaded by a request whose answer was lost and that was sent again.
            if "already been loaded" not in refusal.words:
                self._refuse(refusal, folder)
        self._adapters.loaded(adapter)
        self.policy = adapter.policy
        await self._unload(self._adapters.take_unused())

    def _refuse(self, refusal: RequestRefusedError, folder: str | Path) -> NoReturn:
        if refusal.status != 404 or "adapter" in refusal.words.lower():
            raise EngineError(f"the server cannot load the adapter {folder}: {refusal.words}") from None
        raise InputError(
            f"the server at {self.server.url} takes no adapters; "
            "start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora --max-loras 2"
        ) from None

    async def pause(self) -> None:
        """Nothing to wait for: the server has its own weights and its own machine."""

    async def renew(self, folder: Path, policy: str) -> None:
        """From the next answer on, samples with the adapter in `folder`, which the engine takes over and deletes."""
        await self.load_adapter(folder, policy, temporary=True)

    def release(self, episode: str) -> None:
        """Nothing is kept per episode: the server evicts its own prefix cache."""

    async def close(self) -> None:
        """Unloads the adapters that were loaded for this engine."""
        await self._unload(self._adapters.take_all())
        await self.server.close()

    async def _unload(self, adapters: list[Adapter]) -> None:
        for old in adapters:
            try:
                await self._order("/unload_lora_adapter", {"lora_name": old.name})
            except EngineError as error:  # it is not sampled from again, and only takes some memory
                log.warning("The adapter %s stays loaded: %s", old.name, error)
        delete_folders(adapters)

    async def _complete(
        self, prompt_ids: list[int], asked: dict[str, Any], adapter: Adapter | None = None
    ) -> tuple[list[int], list[int], list[float], str | None]:
        model = adapter.name if adapter else self._model
        body = {"model": model, "prompt": prompt_ids, "logprobs": 0, "return_token_ids": True} | asked
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
        """InputError unless the server gives the log-probabilities that are recorded.

        The model's own of the likeliest tokens are the same however those were drawn. Of what is
        sampled from, the only token that top-k leaves has probability 1.
        """
        plain = SamplingConfig(temperature=0, max_new_tokens=4)
        cut = SamplingConfig(temperature=2, top_k=1, max_new_tokens=4)
        raw = self._logprobs_mode == "raw_logprobs"
        try:
            arguments = [sampling_arguments(sampling, 0, [], 4) for sampling in (plain, cut)]
            ours, theirs = [(await self._complete([1, 2, 3], one))[2] for one in arguments]
            same = all(abs(a - b) <= 0.01 for a, b in zip(ours if raw else [0.0] * 4, theirs, strict=False))
        except LogprobError:  # logits, perhaps
            same = False
        if not same:
            wanted = "the model's own" if raw else "those at the sampling temperature"
            raise InputError(
                f"the server at {self.server.url} gives other log-probabilities than {wanted}; "
                f"start it with --logprobs-mode {self._logprobs_mode}"
            )

    async def _order(self, path: str, body: dict[str, Any]) -> None:
        """A request that is answered with text, not with JSON."""
        await self.server.post(path, body, json_answer=False)
