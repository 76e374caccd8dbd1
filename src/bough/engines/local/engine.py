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
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch

from bough.config.groups import SamplingConfig
from bough.engines.base import ContextFullError, EngineError, Generated
from bough.engines.local.adapters import HalfFoldedError
from bough.engines.local.paths import Layout, PathOptions, choose_path
from bough.engines.local.request import Delivery, Request, StopTexts, on_loop
from bough.engines.local.schedule import Scheduler
from bough.engines.local.worker import EngineWorker
from bough.errors import InputError
from bough.policy.adapters import AdapterWeights
from bough.policy.policy import Policy
from bough.policy.reference import Twin


class LocalEngine:
    """A `TokenEngine` over a policy in memory.

    `max_tokens` is how many tokens are kept for all episodes together (by default as
    many as half of the free memory holds, or most of a GPU's), `max_length` how many one
    episode may have (the model's context, and in rows at most 4,096, unless given),
    `max_running` how many calls are computed at once. `threads` are torch's own; `graphs`
    are CUDA graphs. With `compile`, each layer's small operations become a few kernels: on
    a GPU that takes a minute or two once, and then a step is faster. With `fold`, the policy's
    LoRA adapter is added to copies of the weights and costs no time. That is the default in
    float32, where nothing is lost by it, and on the path "pages", whose weights are copies
    anyway; elsewhere it takes as much memory again as the weights that it adapts. Which path
    computes a model follows from trying (`paths.py`); `layout` asks for one: "pages", "rows" or
    "general". `training_bytes` is what training will take of the same GPU: by default the engine leaves it
    free. With `apart`, the engine keeps a copy of the trained weights and on a GPU computes
    on a stream of its own: it samples while `policy` trains, with the weights of the last `renew`.
    """

    streams = True

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
        training_bytes: int = 0,
        apart: bool = False,
    ) -> None:
        self.policy = name
        self.twin = Twin(policy) if apart else None
        self._tokenizer = tokenizer
        options = PathOptions(max_tokens, max_length, max_running, graphs, compile, fold, layout, training_bytes)
        self.path = choose_path(self.twin.policy if self.twin else policy, options)
        self.reader, self.max_length = self.path.reader, self.path.longest
        self.scheduler = Scheduler(self.path.store, budget=self.path.budget, max_running=max_running)
        self._adapters: set[str] = set()
        self._failure: str | None = None  # of the last `renew`
        threads = threads or torch.get_num_threads()
        self.worker = EngineWorker(
            self.reader, self.scheduler, self.path.runner, threads=threads, patience=8, stream=_stream(policy, apart)
        )

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
        """An engine over the very weights of `policy`, adapters included, or with `apart` over a copy.

        Without `apart`, call `rest` before they are used otherwise; `renew` after they have changed.
        """
        return cls(policy, **options)

    async def generate(
        self,
        episode: str,
        prompt_ids: list[int],
        *,
        sampling: SamplingConfig,
        seed: int,
        stop_ids: list[int],
        adapter: str = "",
        on_tokens: Callable[[list[int]], None] | None = None,
    ) -> Generated:
        """Draws an answer with the adapter of this name, or by default with the policy as it is."""
        self._check_weights()
        self._check(prompt_ids, sampling)
        self._check_set(adapter)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generated] = loop.create_future()
        request = Request(
            _key(episode, adapter),
            list(prompt_ids),
            sampling,
            seed,
            frozenset(stop_ids),
            StopTexts(sampling.stop, self._tokenizer),
            self.max_length,
            deliver=Delivery(future, loop),
            adapter=adapter,
            on_tokens=None if on_tokens is None else on_loop(loop, on_tokens),
        )
        first = self.policy
        self.worker.submit(request)
        try:
            drawn = await future
            self._check_weights()
            policy = first if first == self.policy else f"{first}..{self.policy}"
            return replace(drawn, policy=f"{policy}+{adapter}" if adapter else policy)
        finally:
            request.given_up = not future.done() or future.cancelled()

    def release(self, episode: str, *, adapter: str = "") -> None:
        self.worker.drop(_key(episode, adapter))

    def set_adapter(self, name: str, weights: AdapterWeights) -> None:
        """Adds an adapter that episodes can ask for, or replaces the one of this name.

        It is used in place of the policy's own adapter, if that has one. What was computed with an
        adapter that is replaced is forgotten; its pending answers are cancelled, so let them finish first.
        """
        if not name:
            raise InputError("an adapter needs a name; the empty one stands for the policy as it is")
        if self.reader.compiled:
            raise InputError("layers that are compiled take no adapters by name; leave compile out")
        self.path.adapters.check(weights)
        self._adapters.add(name)
        self.worker.drop_all(name, then=lambda: self._put(name, weights))

    def remove_adapter(self, name: str) -> None:
        """Forgets an adapter and what was computed with it. Pending answers are cancelled."""
        if not name:
            raise InputError("an adapter needs a name; the empty one stands for the policy as it is")
        self._check_set(name)
        self._adapters.remove(name)
        self.worker.drop_all(name, then=lambda: self._remove(name))

    def renew(self, name: str, *, keep: bool = False) -> None:
        """The policy's weights have changed: what was computed with the old ones is forgotten.

        Pending answers are cancelled; let them finish first. With `keep`, they continue with the
        new weights after what was computed for them, which no later answer uses: one whose `policy` is
        a single name was computed with those weights alone.
        Change the weights only while the engine rests or is paused; with `apart`, it must be so
        while this copies them.
        """
        self.policy, self._failure = name, None
        if self.twin:
            self.twin.renew()
        self.worker.order(lambda: self._renew_copies(name))
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

    def _put(self, name: str, weights: AdapterWeights) -> None:
        try:
            self.path.adapters.set(name, weights)
        except BaseException as error:
            self._adapters.discard(name)  # else episodes would be computed without it, or with half of it
            if isinstance(error, HalfFoldedError):
                self._failure = f"the adapter {name!r} could not be set: {error}"
            raise

    def _remove(self, name: str) -> None:
        try:
            self.path.adapters.remove(name)
        except BaseException as error:  # the policy's own adapter may be in some of the weights only
            self._failure = f"the adapter {name!r} could not be removed: {type(error).__name__}: {error}"
            raise

    def _renew_copies(self, name: str) -> None:
        try:
            self.reader.renew()
            if self.path.decoder:
                self.path.decoder.renew()
        except BaseException as error:
            self._failure = f"the weights {name!r} could not be loaded: {type(error).__name__}: {error}"
            raise

    def _check_weights(self) -> None:
        """EngineError after weights could not be loaded: what is sampled would be of others than its name says."""
        if self._failure:
            raise EngineError(self._failure)

    def _check_set(self, adapter: str) -> None:
        if adapter and adapter not in self._adapters:
            known = ", ".join(map(repr, sorted(self._adapters))) or "none"
            raise InputError(f"the engine has no adapter {adapter!r}; set are: {known}")

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


def _key(episode: str, adapter: str) -> Hashable:
    """Episodes of different adapters may have the same name."""
    return (adapter, episode) if adapter else episode


def _stream(policy: Policy, apart: bool) -> torch.cuda.Stream | None:
    """A stream whose kernels go first: a sampler's are small, and what trains has many in its queue."""
    if not apart or policy.device.type != "cuda":
        return None
    return torch.cuda.Stream(policy.device, priority=-1)  # type: ignore[no-untyped-call]


# One adapter of a local engine as an engine of its own, for chats: several of them are sampled in one batch.
# red = TemplateEngine(AdapterEngine(engine, "red"), template, sampling)


class AdapterEngine:
    """A `StreamingTokenEngine` that computes every episode with the adapter `name` of an engine that others use too."""

    streams = True

    def __init__(self, engine: LocalEngine, name: str) -> None:
        self.engine, self.name = engine, name

    @property
    def policy(self) -> str:
        return f"{self.engine.policy}+{self.name}" if self.name else self.engine.policy

    async def generate(
        self,
        episode: str,
        prompt_ids: list[int],
        *,
        sampling: SamplingConfig,
        seed: int,
        stop_ids: list[int],
        on_tokens: Callable[[list[int]], None] | None = None,
    ) -> Generated:
        return await self.engine.generate(
            episode,
            prompt_ids,
            sampling=sampling,
            seed=seed,
            stop_ids=stop_ids,
            adapter=self.name,
            on_tokens=on_tokens,
        )

    def release(self, episode: str) -> None:
        self.engine.release(episode, adapter=self.name)

    async def close(self) -> None:
        """Leaves the engine open: whoever made it closes it."""
