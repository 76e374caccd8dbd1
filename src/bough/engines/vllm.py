"""vLLM in this process: token ids in, token ids and log-probabilities out, many episodes at once.

vLLM keeps what prompts have in common (its prefix cache), so an episode's history is
computed once although nothing here is kept for it. A new adapter is loaded beside the
old one: answers in flight end with the weights they began with.

A seed fixes the draw, but vLLM computes logits in whatever batch there is: where two
tokens are almost equally likely, the rest of the batch can tip the balance.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

from bough.config.sampling import SamplingConfig
from bough.disk import remove
from bough.engines.adapters import LoadedAdapters, adapter_rank, delete_folders
from bough.engines.base import EngineError, Generated
from bough.engines.vllm_arguments import (
    LogprobsMode,
    finish_of,
    last_line,
    logprobs_temperature,
    room_for,
    sampling_arguments,
    start_vllm,
)
from bough.engines.vllm_worker import METHOD
from bough.errors import InputError


class VLLMEngine:
    """vLLM's asynchronous engine. `lora_rank` is the largest rank of adapters that it has room for.

    `sleeps` says whether it was started with vLLM's sleep mode: then `pause` frees its GPU memory.
    """

    def __init__(
        self,
        engine: Any,
        policy: str,
        lora_rank: int = 0,
        *,
        logprobs_mode: LogprobsMode = "raw_logprobs",
        sleeps: bool = False,
    ) -> None:
        self.policy = policy
        self.num_prompt_tokens = self.num_cached_tokens = 0
        self._engine, self._lora_rank = engine, lora_rank
        self._logprobs_mode, self._sleeps = logprobs_mode, sleeps
        self._adapters = LoadedAdapters()
        self._requests = itertools.count(1)
        self._ready = asyncio.Event()  # new requests wait while the engine is paused
        self._ready.set()

    @classmethod
    async def load(
        cls,
        model: str,
        *,
        adapter: str | Path | None = None,
        lora_rank: int = 0,
        logprobs_mode: LogprobsMode = "raw_logprobs",
        **options: Any,
    ) -> VLLMEngine:
        """Starts vLLM with a model and perhaps an adapter; that takes a minute.

        `lora_rank` is the largest rank of adapters to come, 0 if none will. With "processed_logprobs"
        log-probabilities are at the sampling temperature. `options` are vLLM's own engine arguments
        (`max_model_len`, `gpu_memory_utilization`, `tensor_parallel_size`, …).
        """
        if adapter is not None:
            lora_rank = max(lora_rank, adapter_rank(Path(adapter)))
        rank = room_for(lora_rank)
        started = start_vllm(model, rank, logprobs_mode, options)
        sleeps = bool(options.get("enable_sleep_mode"))
        engine = cls(started, model, rank, logprobs_mode=logprobs_mode, sleeps=sleeps)
        try:
            if adapter is not None:
                await engine.load_adapter(adapter)
        except BaseException:
            await engine.close()
            raise
        return engine

    async def generate(
        self,
        episode: str,
        prompt_ids: list[int],
        *,
        sampling: SamplingConfig,
        seed: int,
        stop_ids: list[int],
    ) -> Generated:
        from vllm import SamplingParams, TokensPrompt
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import RequestOutputKind

        await self._ready.wait()
        if self._engine is None:
            raise EngineError("vLLM was closed")
        temperature = logprobs_temperature(self._logprobs_mode, sampling)
        room = self._engine.model_config.max_model_len - len(prompt_ids)
        params = SamplingParams(
            **sampling_arguments(sampling, seed, stop_ids, room),
            logprobs=0,
            detokenize=bool(sampling.stop),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        request = f"{episode}/{next(self._requests)}"
        first = self.policy
        with self._adapters.using() as adapter:
            lora = LoRARequest(adapter.name, adapter.number, str(adapter.folder)) if adapter else None
            try:
                async for output in self._engine.generate(
                    TokensPrompt(prompt_token_ids=prompt_ids), params, request, lora_request=lora
                ):
                    final = output
            except Exception as error:  # vLLM's errors share no base class that all its versions have
                raise EngineError(f"vLLM gave up: {last_line(error)}") from error
        self.num_prompt_tokens += len(prompt_ids)
        self.num_cached_tokens += final.num_cached_tokens or 0
        drawn = final.outputs[0]
        ids = list(drawn.token_ids)
        logprobs = [step[id].logprob for step, id in zip(drawn.logprobs, ids, strict=True)]
        # An adapter stays with its answer; all weights are replaced while answers wait.
        policy = first if adapter or first == self.policy else f"{first}..{self.policy}"
        return Generated(ids, logprobs, finish_of(drawn.finish_reason), policy, temperature)

    async def load_adapter(self, folder: str | Path, policy: str | None = None, *, temporary: bool = False) -> None:
        """From the next answer on, samples with the adapter in `folder`; `policy` is its name in the records.

        With `temporary`, the folder is deleted when no answer uses the adapter any more.
        """
        from vllm.lora.request import LoRARequest

        if (rank := adapter_rank(Path(folder))) > self._lora_rank:
            raise InputError(
                f"{folder} has rank {rank}, and vLLM was started for adapters of rank {self._lora_rank} "
                "at most (0: none); give it a larger lora_rank"
            )
        adapter = self._adapters.new(folder, policy, temporary=temporary)
        try:
            loaded = await self._engine.add_lora(LoRARequest(adapter.name, adapter.number, str(adapter.folder)))
        except Exception as error:
            raise EngineError(f"vLLM cannot load the adapter {folder}: {last_line(error)}") from error
        if not loaded:
            raise EngineError(f"vLLM did not load the adapter {folder}")
        self._adapters.loaded(adapter)
        self.policy = adapter.policy
        unused = self._adapters.take_unused()
        for old in unused:
            await self._engine.remove_lora(old.number)
        delete_folders(unused)

    async def pause(self) -> None:
        """Stops sampling and forgets the prefix cache; with sleep mode, frees the GPU's memory.

        Answers in flight keep their tokens and wait for `renew`; so do new requests.
        """
        self._ready.clear()
        if self._sleeps:
            # Level 1 keeps the base model in the host's memory; level 2 keeps nothing: all weights will be replaced.
            await self._engine.sleep(level=1 if self._lora_rank else 2, mode="keep")
        else:
            await self._engine.pause_generation(mode="keep", clear_cache=True)

    async def renew(self, folder: Path, policy: str) -> None:
        """Continues after `pause`, with the weights in `folder`: an adapter, or all of the model's weights.

        The engine takes over the folder and deletes it. If this fails, nothing more is sampled.
        """
        if self._lora_rank:
            await self._resume()  # answers in flight continue with the adapter they began with
            await self.load_adapter(folder, policy, temporary=True)
        else:
            await self._load_weights(folder)
            remove(folder)
            self.policy = policy
            await self._resume()
        self._ready.set()

    async def _load_weights(self, folder: Path) -> None:
        try:
            if self._sleeps:
                await self._engine.wake_up(tags=["weights"])
            await self._engine.collective_rpc(METHOD, args=(str(folder),))
        except Exception as error:
            raise EngineError(f"vLLM cannot load the new weights: {last_line(error)}") from error

    async def _resume(self) -> None:
        try:
            if self._sleeps:
                await self._engine.wake_up()
            else:
                await self._engine.resume_generation()
        except Exception as error:
            raise EngineError(f"vLLM does not resume: {last_line(error)}") from error

    def release(self, episode: str) -> None:
        """Nothing is kept per episode: vLLM evicts its own prefix cache."""

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        self._ready.set()
        delete_folders(self._adapters.take_all())
        if engine is not None:
            engine.shutdown()
            # Its destructor does the same again, and prints a traceback if that is when the process ends.
            engine.shutdown = lambda timeout=None: None  # noqa: ARG005
