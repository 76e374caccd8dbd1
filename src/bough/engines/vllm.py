"""vLLM in this process: token ids in, token ids and log-probabilities out, many episodes at once.

vLLM keeps what prompts have in common (its prefix cache), so an episode's history is
computed once although nothing here is kept for it. A new adapter is loaded beside the
old one: answers in flight end with the weights they began with.

A seed fixes the draw, but vLLM computes logits in whatever batch there is: where two
tokens are almost equally likely, the rest of the batch can tip the balance.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bough.config.groups import SamplingConfig
from bough.engines import vllm_worker
from bough.engines.base import ContextFullError, EngineError, Generated
from bough.engines.http import RequestRefusedError, Server, ServerLimits
from bough.engines.openai import LogprobError, choose_model, context_is_full, list_models, read_choice, read_tokens
from bough.engines.vllm_worker import METHOD
from bough.errors import InputError
from bough.files import read_json, remove
from bough.types import Finish

log = logging.getLogger(__name__)


@dataclass
class Adapter:
    """A LoRA adapter in an engine. `policy` is its name in the records, `in_use` how many answers use it."""

    name: str
    number: int
    folder: Path
    policy: str
    temporary: bool
    in_use: int = 0


class SwappingEngine:
    """An engine whose newest adapter samples new answers; older ones stay while an answer that they began is in flight.

    Each load gets a new name, even of the same folder: vLLM's prefix cache tells adapters apart by name, and
    a name that came twice would bring back what was computed with the old weights.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self._adapters: list[Adapter] = []  # the newest last
        self._numbers = itertools.count(1)

    async def load_adapter(self, folder: str | Path, policy: str | None = None, *, temporary: bool = False) -> None:
        """From the next answer on, samples with the adapter in `folder`; `policy` is its name in the records.

        With `temporary`, the folder is deleted when no answer uses the adapter any more.
        """
        rank = adapter_rank(Path(folder))  # a folder without an adapter is reported here, not by vLLM
        name = f"{Path(policy or folder).name}-{uuid.uuid4().hex[:8]}"
        adapter = Adapter(name, next(self._numbers), Path(folder).absolute(), policy or str(folder), temporary)
        await self._load(adapter, rank)
        old, self._adapters = self._adapters, [*(one for one in self._adapters if one.in_use), adapter]
        self.policy = adapter.policy
        await self._drop([one for one in old if not one.in_use])

    @contextmanager
    def _using(self) -> Iterator[Adapter | None]:
        """The newest adapter, kept until the answer has ended."""
        adapter = self._adapters[-1] if self._adapters else None
        if adapter is None:
            yield None
            return
        adapter.in_use += 1
        try:
            yield adapter
        finally:
            adapter.in_use -= 1

    async def _drop(self, adapters: list[Adapter]) -> None:
        for adapter in adapters:
            await self._unload(adapter)
            if adapter.temporary and adapter.folder.exists():
                remove(adapter.folder)

    async def _load(self, adapter: Adapter, rank: int) -> None:
        raise NotImplementedError

    async def _unload(self, adapter: Adapter) -> None:
        raise NotImplementedError

    def release(self, episode: str) -> None:
        """Nothing is kept per episode: vLLM evicts its own prefix cache."""


class VLLMEngine(SwappingEngine):
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
        super().__init__(policy)
        self.num_cached_tokens = 0
        self._engine, self._lora_rank = engine, lora_rank
        self._logprobs_mode, self._sleeps = logprobs_mode, sleeps
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
        log-probabilities are at the sampling temperature. `options` are those of vLLM's engine arguments
        that `OPTIONS` names (`max_model_len`, `gpu_memory_utilization`, `tensor_parallel_size`, …).
        """
        if adapter is not None:
            lora_rank = max(lora_rank, adapter_rank(Path(adapter)))
        # The smallest rank that vLLM can be started for and that this fits into.
        rank = next((room for room in LORA_RANKS if room >= lora_rank), lora_rank) if lora_rank else 0
        # vLLM reports usage statistics and logs a lot while it starts; both only if the user asks for it.
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        # A forked process would inherit the threads and the CUDA state of this one.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        try:
            from vllm import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise InputError(f"vLLM cannot be loaded ({error}); install it: pip install 'bough[vllm]'") from None
        given = engine_arguments(model, rank, logprobs_mode, options)
        if unknown := sorted(given.keys() - {field.name for field in dataclasses.fields(AsyncEngineArgs)}):
            raise InputError(f"vLLM has no option {', '.join(unknown)}")
        try:
            started = AsyncLLM.from_engine_args(AsyncEngineArgs(**given))
        except (RuntimeError, ValueError, OSError) as error:
            raise EngineError(f"vLLM does not start with {model}: {last_line(error)}") from error
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
        with self._using() as adapter:
            lora = LoRARequest(adapter.name, adapter.number, str(adapter.folder)) if adapter else None
            try:
                async for output in self._engine.generate(
                    TokensPrompt(prompt_token_ids=prompt_ids), params, request, lora_request=lora
                ):
                    final = output
            except Exception as error:  # vLLM's errors share no base class that all its versions have
                raise EngineError(f"vLLM gave up: {last_line(error)}") from error
        self.num_cached_tokens += final.num_cached_tokens or 0
        drawn = final.outputs[0]
        ids = list(drawn.token_ids)
        logprobs = [step[id].logprob for step, id in zip(drawn.logprobs, ids, strict=True)]
        # An adapter stays with its answer; all weights are replaced while answers wait.
        policy = first if adapter or first == self.policy else f"{first}..{self.policy}"
        return Generated(ids, logprobs, finish_of(drawn.finish_reason), policy, temperature)

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
            try:
                if self._sleeps:
                    await self._engine.wake_up(tags=["weights"])
                await self._engine.collective_rpc(METHOD, args=(str(folder),))
            except Exception as error:
                raise EngineError(f"vLLM cannot load the new weights: {last_line(error)}") from error
            remove(folder)
            self.policy = policy
            await self._resume()
        self._ready.set()

    async def _resume(self) -> None:
        try:
            if self._sleeps:
                await self._engine.wake_up()
            else:
                await self._engine.resume_generation()
        except Exception as error:
            raise EngineError(f"vLLM does not resume: {last_line(error)}") from error

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        self._ready.set()
        await self._drop(self._adapters)
        self._adapters = []
        if engine is not None:
            engine.shutdown()
            # Its destructor does the same again, and prints a traceback if that is when the process ends.
            engine.shutdown = lambda timeout=None: None  # noqa: ARG005

    async def _load(self, adapter: Adapter, rank: int) -> None:
        from vllm.lora.request import LoRARequest

        if rank > self._lora_rank:
            raise InputError(
                f"{adapter.folder} has rank {rank}, and vLLM was started for adapters of rank {self._lora_rank} "
                "at most (0: none); give it a larger lora_rank"
            )
        try:
            loaded = await self._engine.add_lora(LoRARequest(adapter.name, adapter.number, str(adapter.folder)))
        except Exception as error:
            raise EngineError(f"vLLM cannot load the adapter {adapter.folder}: {last_line(error)}") from error
        if not loaded:
            raise EngineError(f"vLLM did not load the adapter {adapter.folder}")

    async def _unload(self, adapter: Adapter) -> None:
        if self._engine is not None:
            await self._engine.remove_lora(adapter.number)


# What vLLM is told: the arguments of its engine, and the sampling parameters of a request.

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM has room for
# The log-probabilities that are recorded: of the model's own distribution, or of the one that is sampled from.
LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]
# Settings files may come from anyone, and with other options vLLM imports code, loads other models or opens ports.
OPTIONS = {
    "block_size", "cpu_offload_gb", "disable_log_stats", "dtype", "enable_chunked_prefill", "enable_prefix_caching",
    "enable_sleep_mode", "enforce_eager", "gpu_memory_utilization", "kv_cache_dtype", "max_cpu_loras", "max_lora_rank",
    "max_loras", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "pipeline_parallel_size", "quantization",
    "seed", "swap_space", "tensor_parallel_size",
}  # fmt: skip


def engine_arguments(
    model: str, lora_rank: int, logprobs_mode: LogprobsMode, options: dict[str, Any]
) -> dict[str, Any]:
    """Our defaults, then `options`, then what they may not change."""
    import torch

    from bough.models.resolve import refuse_pickle, resolve

    refuse_pickle(source := resolve(model))
    # bfloat16 is the slower type on a CPU, and float32 agrees with what is trained there.
    ours: dict[str, Any] = {} if torch.cuda.is_available() else {"dtype": "float32"}
    if lora_rank:
        # Two: the newest adapter, and the one before it for the answers in flight.
        ours |= {"enable_lora": True, "max_lora_rank": lora_rank, "max_loras": 2}
    fixed = {
        "model": str(source),
        # The sampling defaults in the model's folder must not apply, and log-probabilities must be what we record.
        "generation_config": "vllm",
        "logprobs_mode": logprobs_mode,
        "trust_remote_code": False,
        "worker_extension_cls": vllm_worker.NAME,
    }
    if taken := sorted(options.keys() & fixed.keys()):
        raise InputError(f"vLLM's {', '.join(taken)} is set by Bough itself; leave it out")
    if refused := sorted(options.keys() - OPTIONS):
        raise InputError(f"vLLM's {', '.join(refused)} is not an option here; allowed: {', '.join(sorted(OPTIONS))}")
    quiet = {"disable_log_stats": True, "use_tqdm_on_load": False}
    return {"enable_prefix_caching": True} | quiet | ours | options | fixed


def sampling_arguments(sampling: SamplingConfig, seed: int, stop_ids: list[int], room: int) -> dict[str, Any]:
    """The sampling parameters, in the names that vLLM's engine and its server share.

    `room` is the number of tokens left in the context. Neutral values are given too: a server
    fills in its own otherwise.
    """
    if room < 1:
        raise ContextFullError("the conversation fills the model's context; there is no room for an answer")
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": min(sampling.max_new_tokens, room),
        "seed": seed,
        "stop": sampling.stop,
        "include_stop_str_in_output": True,
        "stop_token_ids": stop_ids,
        "ignore_eos": True,  # only `stop_ids` end an answer
        "skip_special_tokens": False,
    }


def logprobs_temperature(mode: LogprobsMode, sampling: SamplingConfig) -> float:
    """The temperature of the log-probabilities that come back for a request.

    InputError where they would be of a distribution that top-p, top-k or min-p have cut.
    """
    if mode == "raw_logprobs":
        return 1.0
    if sampling.top_p < 1 or sampling.top_k or sampling.min_p:
        raise InputError("vLLM was started for log-probabilities at the sampling temperature; top_p, top_k or min_p "
                         "would change them")  # fmt: skip
    return sampling.temperature or 1.0


def finish_of(reason: str | None) -> Finish:
    return "stop" if reason == "stop" else "length" if reason == "length" else "abort"


def last_line(error: BaseException) -> str:
    """The end of an error's text, where vLLM says what went wrong."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


# A vLLM server as a token engine: prompts go as token ids, answers come back as token ids.
# Started, for example, with
#     VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve MODEL --enable-lora --max-loras 2
# (without LoRA if no adapter will be loaded). Adapters are named by folder, so the server must see the same disk.


class VLLMServerEngine(SwappingEngine):
    """A model on a running vLLM server. `context` is how many tokens prompt and answer may have together."""

    def __init__(
        self, server: Server, model: str, context: int, *, logprobs_mode: LogprobsMode = "raw_logprobs"
    ) -> None:
        super().__init__(model)
        self.server, self._model, self._context, self._logprobs_mode = server, model, context, logprobs_mode

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
        with self._using() as adapter:
            prompt, ids, logprobs, finish = await self._complete(prompt_ids, asked, adapter)
        if prompt != prompt_ids:
            raise EngineError(f"{self.server.url} changed the prompt: {len(prompt)} tokens, not {len(prompt_ids)}")
        return Generated(ids, logprobs, finish_of(finish), policy, temperature)

    async def pause(self) -> None:
        """Nothing to wait for: the server has its own weights and its own machine."""

    async def renew(self, folder: Path, policy: str) -> None:
        """From the next answer on, samples with the adapter in `folder`, which the engine takes over and deletes."""
        await self.load_adapter(folder, policy, temporary=True)

    async def close(self) -> None:
        """Unloads the adapters that were loaded for this engine."""
        await self._drop(self._adapters)
        self._adapters = []
        await self.server.close()

    async def _load(self, adapter: Adapter, rank: int) -> None:  # noqa: ARG002 (the server knows its largest)
        body = {"lora_name": adapter.name, "lora_path": str(adapter.folder)}
        try:
            await self.server.post("/load_lora_adapter", body, json_answer=False)
        except RequestRefusedError as refusal:
            if refusal.status == 404 and "adapter" not in refusal.words.lower():
                raise InputError(
                    f"the server at {self.server.url} takes no adapters; "
                    "start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora --max-loras 2"
                ) from None
            # The name is new, so the adapter was loaded by a request whose answer was lost and that was sent again.
            if "already been loaded" not in refusal.words:
                raise EngineError(f"the server cannot load the adapter {adapter.folder}: {refusal.words}") from None

    async def _unload(self, adapter: Adapter) -> None:
        try:
            await self.server.post("/unload_lora_adapter", {"lora_name": adapter.name}, json_answer=False)
        except EngineError as error:  # it is not sampled from again, and only takes some memory
            log.warning("The adapter %s stays loaded: %s", adapter.name, error)

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


def adapter_rank(folder: Path) -> int:
    """The rank of the adapter in `folder`."""
    try:
        settings = read_json(folder / "adapter_config.json")
        return max([int(settings["r"]), *map(int, settings.get("rank_pattern", {}).values())])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder} contains no LoRA adapter: adapter_config.json: {error}") from None
