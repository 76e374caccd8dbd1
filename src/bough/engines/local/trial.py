"""Before anything is sampled: do the engine's log-probabilities agree with the policy's?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from bough.config.sampling import SamplingConfig
from bough.engines.local.reader import Reader
from bough.engines.local.request import Request
from bough.engines.local.schedule import Resident, Span, Store
from bough.engines.local.stops import StopTexts
from bough.types import Call

if TYPE_CHECKING:
    from bough.engines.local.worker import SpanRunner

TRIED = 32  # tokens, and as many more as the longest window has, if that is not longer than this:
LONGEST_WINDOW = 256
DRAWN = 4  # tokens
WINDOWS = ("sliding_window", "attention_chunk_size", "attention_window_size", "window_size")


def difference(reader: Reader, store: Store, runner: SpanRunner) -> float:
    """How far the log-probabilities of a few drawn tokens are from those that the policy computes, on average."""
    policy = reader.policy
    length = trial_length(reader)
    request = Request(
        "trial",
        trial_tokens(reader, length - DRAWN),
        SamplingConfig(max_new_tokens=DRAWN, temperature=policy.temperature or 1.0),
        seed=0,
        stop_ids=frozenset(),
        stops=StopTexts([], None),
        limit=length,
        deliver=lambda _: None,
    )
    resident = Resident(request=request)
    store.allocate(resident, request.most)
    store.own(resident, 0)
    try:
        with reader.reading():
            drawn = None
            while drawn is None:
                (new,) = runner.run([Span(resident, request.after(len(resident.ids)), draws=True)])
                drawn = request.take(new)
            if isinstance(drawn, BaseException):
                return math.nan
            call = Call(prompt_ids=request.prompt_ids, completion_ids=drawn.completion_ids)
            (own,) = policy.logprobs([call], share=False)
            return float((torch.tensor(drawn.logprobs) - own.cpu()).abs().mean())
    finally:
        store.free(resident)


def agrees(difference: float, reader: Reader) -> bool:
    """Whether log-probabilities that are this far apart on average are those of one model, rounded differently."""
    if torch.finfo(reader.dtype).eps > 1e-5:
        return difference <= 0.1
    # cuDNN's convolutions round more coarsely, even in float32.
    return difference <= (1e-4 if reader.device.type == "cpu" else 1e-3)


def trial_length(reader: Reader) -> int:
    """Tokens enough to look past a window, where that is cheap."""
    config: Any = reader.policy.decoder.config
    windows = [value for name in WINDOWS if isinstance(value := getattr(config, name, None), int)]
    longest = max((window for window in windows if window <= LONGEST_WINDOW), default=0)
    return min(TRIED + longest, reader.context)


def trial_tokens(reader: Reader, length: int, seed: int = 0) -> list[int]:
    """Made-up tokens."""
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(0, reader.vocabulary, (length,), generator=generator).tolist()
    return tokens
