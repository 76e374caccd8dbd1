"""What vLLM is told: the arguments of its engine, and the sampling parameters of a request."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Literal

from bough.config.sampling import SamplingConfig
from bough.engines import vllm_worker
from bough.engines.base import ContextFullError, EngineError
from bough.errors import InputError
from bough.types import Finish

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM has room for
# The log-probabilities that are recorded: of the model's own distribution, or of the one that is sampled from.
LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]


def start_vllm(model: str, lora_rank: int, logprobs_mode: LogprobsMode, options: dict[str, Any]) -> Any:
    """vLLM's asynchronous engine, running. InputError for options that it does not have."""
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
    given = engine_arguments(model, lora_rank, logprobs_mode, options)
    if unknown := sorted(given.keys() - {field.name for field in dataclasses.fields(AsyncEngineArgs)}):
        raise InputError(f"vLLM has no option {', '.join(unknown)}")
    try:
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**given))
    except (RuntimeError, ValueError, OSError) as error:
        raise EngineError(f"vLLM does not start with {model}: {last_line(error)}") from error


def engine_arguments(
    model: str, lora_rank: int, logprobs_mode: LogprobsMode, options: dict[str, Any]
) -> dict[str, Any]:
    """Our defaults, then `options`, then what they may not change."""
    import torch

    from bough.models.resolve import resolve

    # bfloat16 is the slower type on a CPU, and float32 agrees with what is trained there.
    ours: dict[str, Any] = {} if torch.cuda.is_available() else {"dtype": "float32"}
    if lora_rank:
        # Two: the newest adapter, and the one before it for the answers in flight.
        ours |= {"enable_lora": True, "max_lora_rank": lora_rank, "max_loras": 2}
    fixed = {
        "model": str(resolve(model)),
        # The sampling defaults in the model's folder must not apply, and log-probabilities must be what we record.
        "generation_config": "vllm",
        "logprobs_mode": logprobs_mode,
        "trust_remote_code": False,
        "worker_extension_cls": vllm_worker.NAME,
    }
    if taken := sorted(options.keys() & fixed.keys()):
        raise InputError(f"vLLM's {', '.join(taken)} is set by Bough itself; leave it out")
    quiet = {"disable_log_stats": True, "use_tqdm_on_load": False}
    return {"enable_prefix_caching": True} | quiet | ours | options | fixed


def room_for(rank: int) -> int:
    """The smallest rank that vLLM can be started for and that `rank` fits into; 0 for none."""
    return next((room for room in LORA_RANKS if room >= rank), rank) if rank else 0


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
