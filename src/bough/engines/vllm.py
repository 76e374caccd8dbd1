"""vLLM in this process: token ids in, token ids and log-probabilities out, many episodes at once.

vLLM keeps what prompts have in common (its prefix cache), so an episode's history is
computed once although nothing here is kept for it. A new adapter is loaded beside the
old one: answers under way end with the weights they began with.

A seed fixes the draw, but vLLM computes logits in whatever batch there is: where two
tokens are almost equally likely, company can tip the balance.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from pathlib import Path
from typing import Any

from bough.config.sampling import SamplingConfig
from bough.engines.base import ContextFullError, EngineError, Generated
from bough.errors import InputError
from bough.types import Finish

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM has room for


class VLLMEngine:
    """vLLM's asynchronous engine. `lora_rank` is the largest rank of adapters that it has room for."""

    def __init__(self, engine: Any, policy: str, lora_rank: int = 0) -> None:
        self.policy = policy
        self.num_prompt_tokens = self.num_cached_tokens = 0
        self._engine, self._lora_rank = engine, lora_rank
        self._lora: Any = None
        self._numbers = itertools.count(1)

    @classmethod
    async def load(
        cls, model: str, *, adapter: str | Path | None = None, lora_rank: int = 0, **options: Any
    ) -> VLLMEngine:
        """Starts vLLM with a model and perhaps an adapter; that takes a minute.

        `lora_rank` is the largest rank of adapters to come, 0 if none will. `options` are vLLM's
        own engine arguments (`max_model_len`, `gpu_memory_utilization`, `tensor_parallel_size`, …).
        """
        if adapter is not None:
            lora_rank = max(lora_rank, adapter_rank(Path(adapter)))
        rank = _room_for(lora_rank)
        engine = cls(_start(model, rank, options), model, rank)
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
        from vllm.sampling_params import RequestOutputKind

        if self._engine is None:
            raise EngineError("vLLM was closed")
        room = self._engine.model_config.max_model_len - len(prompt_ids)
        params = SamplingParams(
            **drawing(sampling, seed, stop_ids, room),
            logprobs=0,
            detokenize=bool(sampling.stop),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        request = f"{episode}/{next(self._numbers)}"
        policy = self.policy  # another adapter may have come when the answer has
        try:
            async for output in self._engine.generate(
                TokensPrompt(prompt_token_ids=prompt_ids), params, request, lora_request=self._lora
            ):
                final = output
        except Exception as error:  # vLLM's errors share no base class that all its versions have
            raise EngineError(f"vLLM gave up: {_last_line(error)}") from error
        self.num_prompt_tokens += len(prompt_ids)
        self.num_cached_tokens += final.num_cached_tokens or 0
        drawn = final.outputs[0]
        ids = list(drawn.token_ids)
        logprobs = [step[id].logprob for step, id in zip(drawn.logprobs, ids, strict=True)]
        return Generated(ids, logprobs, finish_of(drawn.finish_reason), policy)

    async def load_adapter(self, folder: str | Path, policy: str | None = None) -> None:
        """From the next answer on, the adapter in `folder` speaks; `policy` is its name in the records."""
        from vllm.lora.request import LoRARequest

        if (rank := adapter_rank(Path(folder))) > self._lora_rank:
            raise InputError(
                f"{folder} has rank {rank}, and vLLM was started for adapters of rank {self._lora_rank} "
                "at most (0: none); give it a larger lora_rank"
            )
        number = next(self._numbers)
        # The prefix cache tells adapters apart by name: a name that came twice would revive the old one's cache.
        request = LoRARequest(f"{policy or folder}#{number}", number, str(Path(folder).absolute()))
        try:
            await self._engine.add_lora(request)
        except Exception as error:
            raise EngineError(f"vLLM cannot load the adapter {folder}: {_last_line(error)}") from error
        self._lora, self.policy = request, policy or str(folder)

    def release(self, episode: str) -> None:
        """Nothing is kept per episode: vLLM evicts its own prefix cache."""

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()


def _start(model: str, lora_rank: int, options: dict[str, Any]) -> Any:
    # vLLM reports who uses it, and says a great deal while it starts; both only if asked to.
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    try:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as error:
        raise InputError(f"vLLM cannot be loaded ({error}); install it: pip install 'bough[vllm]'") from None
    given = _arguments(model, lora_rank, options)
    if unknown := sorted(given.keys() - {field.name for field in dataclasses.fields(AsyncEngineArgs)}):
        raise InputError(f"vLLM has no option {', '.join(unknown)}")
    try:
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**given))
    except (RuntimeError, ValueError, OSError) as error:
        raise EngineError(f"vLLM does not start with {model}: {_last_line(error)}") from error


def _arguments(model: str, lora_rank: int, options: dict[str, Any]) -> dict[str, Any]:
    import torch

    from bough.models.resolve import resolve

    # bfloat16 is the slower type on a CPU, and float32 agrees with what is trained there.
    ours: dict[str, Any] = {} if torch.cuda.is_available() else {"dtype": "float32"}
    if lora_rank:
        # Two: the newest adapter, and the one before it for the answers that are under way.
        ours |= {"enable_lora": True, "max_lora_rank": lora_rank, "max_loras": 2}
    fixed = {
        "model": str(resolve(model)),
        # Neither the model folder's taste in sampling nor anything but the model's own log-probabilities.
        "generation_config": "vllm",
        "logprobs_mode": "raw_logprobs",
        "trust_remote_code": False,
    }
    if taken := sorted(options.keys() & fixed.keys()):
        raise InputError(f"vLLM's {', '.join(taken)} is set by Bough itself; leave it out")
    return {"enable_prefix_caching": True, "disable_log_stats": True} | ours | options | fixed


def _room_for(rank: int) -> int:
    return next((room for room in LORA_RANKS if room >= rank), rank) if rank else 0


def drawing(sampling: SamplingConfig, seed: int, stop_ids: list[int], room: int) -> dict[str, Any]:
    """How to draw, in the words that vLLM's engine and its server share. `room` is what the context has left.

    Everything is said, the neutral values too: a server fills in its own otherwise.
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


def adapter_rank(folder: Path) -> int:
    """The rank of the adapter in `folder`."""
    try:
        settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        return max([int(settings["r"]), *map(int, settings.get("rank_pattern", {}).values())])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder} contains no LoRA adapter: adapter_config.json: {error}") from None


def finish_of(reason: str | None) -> Finish:
    return "stop" if reason == "stop" else "length" if reason == "length" else "abort"


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
