"""The local engine: token ids in, token ids and log-probabilities out, in this process.

    engine = LocalEngine.load("smollm2")
    drawn = await engine.generate("episode-1", ids, sampling=SamplingConfig(), seed=7, stop_ids=[2])

On the CPU in float32 a draw is the same to the last bit whatever else is generated beside
it, whichever way its prompt was cached and however often it is repeated; where the
machine's matrix products cannot keep that, a warning says so. On a GPU, and for models that
take the general path, it is the same only up to rounding.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch

from bough.config.sampling import SamplingConfig
from bough.engines.base import ContextFullError, Generated
from bough.engines.local.paths import Layout, PathOptions, choose_path
from bough.engines.local.request import Delivery, Request
from bough.engines.local.schedule import Scheduler
from bough.engines.local.stops import StopTexts
from bough.engines.local.worker import EngineWorker
from bough.errors import InputError
from bough.policy.policy import Policy


class LocalEngine:
    """A `TokenEngine` over a policy in memory.

    `max_tokens` is how many tokens are kept for all episodes together (by default as
    many as half of the free memory holds, or most of a GPU's), `max_length` how many one
    episode may have (the model's context, and in rows at most 4,096, unless given),
    `max_running` how many calls are computed at once. `threads` are torch's own; `graphs`
    are CUDA graphs. With `compile`, each layer's small operations become a few kernels: on
    a GPU that takes a minute or two once, and then a step is faster. With `fold`, a LoRA
    adapter costs no time but memory: as much again as the weights that it adapts (by default
    so in float32, where nothing is lost by it). Which path computes a model follows from trying
    (`paths.py`); `layout` asks for one: "pages", "rows" or "general".
    """

    def __init__(
        self,
        policy: Policy,
        *,
        name: str = "local",
        tokenizer: Any = None,
        max_tokens: int | None = None,
        max_length: int | None = None,
        max_running: int = 256,
        threads: int | None = None,
        graphs: bool = True,
        compile: bool = False,
        fold: bool | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.policy = name
        self._tokenizer = tokenizer
        options = PathOptions(max_tokens, max_length, max_running, graphs, compile, fold, layout)
        self.path = choose_path(policy, options)
        self.reader, self.max_length = self.path.reader, self.path.longest
        self.scheduler = Scheduler(self.path.store, budget=self.path.budget, max_running=max_running)
        threads = threads or torch.get_num_threads()
        self.worker = EngineWorker(self.reader, self.scheduler, self.path.runner, threads=threads, patience=8)

    @classmethod
    def load(
        cls,
        model: str,
        adapter: str | Path | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
        quantize: bool = False,
        **options: Any,
    ) -> Self:
        """An engine over a built-in model, a local folder (of an adapter too) or a hub id."""
        from bough.models.resolve import load_tokenizer

        policy = Policy.load(model, adapter=adapter, dtype=dtype, device=device, quantize=quantize)
        name = model if adapter is None else f"{model}+{Path(adapter).name}"
        return cls(policy.eval(), **{"name": name, "tokenizer": load_tokenizer(model)} | options)

    @classmethod
    def of(cls, policy: Policy, **options: Any) -> Self:
        """An engine over the very weights of `policy`, adapters included.

        Call `rest` before they are used otherwise and `renew` after they have changed.
        """
        return cls(policy, **options)

    async def generate(
        self, episode: str, prompt_ids: list[int], *, sampling: SamplingConfig, seed: int, stop_ids: list[int]
    ) -> Generated:
        self._check(prompt_ids, sampling)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generated] = loop.create_future()
        request = Request(
            episode,
            list(prompt_ids),
            sampling,
            seed,
            frozenset(stop_ids),
            StopTexts(sampling.stop, self._tokenizer),
            self.max_length,
            deliver=Delivery(future, loop),
        )
        first = self.policy
        self.worker.submit(request)
        try:
            drawn = await future
            return replace(drawn, policy=first if first == self.policy else f"{first}..{self.policy}")
        finally:
            request.given_up = not future.done() or future.cancelled()

    def release(self, episode: str) -> None:
        self.worker.drop(episode)

    def renew(self, name: str, *, keep: bool = False) -> None:
        """The policy's weights have changed: what was computed with the old ones is forgotten.

        Pending answers are cancelled; let them finish first. With `keep`, they continue with the
        new weights and what was computed for their episodes stays, but no other episode uses it.
        Change the weights only while the engine rests or is paused.
        """
        self.policy = name
        self.worker.order(self.reader.renew)
        if self.path.decoder:
            self.worker.order(self.path.decoder.renew)
        if keep:
            self.worker.order(self.scheduler.age)
        else:
            self.worker.drop_all()

    def pause(self) -> None:
        """Stops at the next step and waits for it: the policy is then free for other uses. Pending answers wait."""
        self.worker.pause()

    def resume(self) -> None:
        """Continues after `pause`."""
        self.worker.resume()

    def rest(self) -> None:
        """Waits until nothing is computed: an answer is there a moment before the policy is free for other uses."""
        self.worker.rest()

    async def close(self) -> None:
        await asyncio.to_thread(self.worker.close)

    def _check(self, prompt_ids: list[int], sampling: SamplingConfig) -> None:
        if not prompt_ids:
            raise InputError("the prompt is empty; a model needs at least one token to continue from")
        if not 0 <= min(prompt_ids) <= max(prompt_ids) < self.reader.vocabulary:
            most = self.reader.vocabulary - 1
            raise InputError(f"prompt ids from {min(prompt_ids)} to {max(prompt_ids)}: the vocabulary is 0 to {most}")
        if len(prompt_ids) >= self.max_length:
            limit = "the model's context" if self.max_length == self.reader.context else "what the engine can keep"
            raise ContextFullError(
                f"the conversation has {len(prompt_ids)} tokens and leaves no room for an answer; "
                f"{limit} is {self.max_length} tokens"
            )
        if any(sampling.stop) and self._tokenizer is None:
            raise InputError("stop texts need the model's tokenizer; give it as tokenizer=")
