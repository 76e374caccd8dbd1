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
import logging
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Sequence
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch

from bough.config.groups import SamplingConfig
from bough.engines.base import ContextFullError, EngineError, Generated
from bough.engines.local.paths import Layout, PathOptions, choose_path
from bough.engines.local.paths import Path as EnginePath
from bough.engines.local.schedule import Outcome, Request, Scheduler, Span, settle
from bough.errors import InputError
from bough.policy.adapters import AdapterWeights
from bough.policy.policy import Policy
from bough.policy.reference import Twin

log = logging.getLogger(__name__)

SWITCH_S = 0.0005  # between Python threads, while a GPU computes


class EngineWorker:
    """The thread that runs the model, step after step, while the event loop stays free.

    It serves requests until it is closed. All its public functions may be called from any thread.
    On a GPU it computes on `stream`, by default the same as everything else.
    """

    def __init__(
        self, path: EnginePath, *, max_running: int, threads: int, stream: torch.cuda.Stream | None = None
    ) -> None:
        self.reader, self.runner = path.reader, path.runner
        self.scheduler = Scheduler(path.store, budget=path.budget, max_running=max_running, merges=path.runner.merges)
        self.threads, self.stream = threads, stream
        self.num_steps = 0
        self._orders: list[Callable[[], None]] = []
        self._wake = threading.Condition()
        self._closed = self._at_work = self._paused = False
        self._thread: threading.Thread | None = None

    def submit(self, *requests: Request) -> None:
        with self._wake:
            if self._closed:
                raise EngineError("the engine is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="bough-local-engine", daemon=True)
                self._thread.start()
        self.order(lambda: self.scheduler.waiting.extend(requests))

    def order(self, do: Callable[[], None]) -> None:
        """Has `do` done between two steps, in the order of asking."""
        with self._wake:
            self._orders.append(do)
            self._wake.notify_all()

    def drop(
        self, episode: Hashable = None, *, adapter: str | None = None, then: Callable[[], None] = lambda: None
    ) -> None:
        """Drops an episode, those of one adapter, or all; `then` is done before any other request begins."""

        def meant(name: Hashable, of: str) -> bool:
            return (episode is None or name == episode) and (adapter is None or of == adapter)

        def drop() -> None:
            dropped = [request for request in self.scheduler.requests() if meant(request.episode, request.adapter)]
            for request in dropped:
                request.given_up = True
            self.scheduler.forget_the_given_up()
            for name, one in list(self.scheduler.residents.items()):
                if meant(name, one.adapter):
                    self.scheduler.drop(name)
            error = EngineError("the episode was released before its answer was complete")
            settle((request, error) for request in dropped)
            then()

        self.order(drop)

    def rest(self) -> None:
        """Waits until nothing is computed: an answer is there a moment before the policy is free for other uses."""
        with self._wake:
            self._wake.wait_for(
                lambda: not self._at_work and (self._thread is None or self._closed or not self._orders)
            )

    def pause(self) -> None:
        """Stops at the next step and waits for it: the policy is then free for other uses. Pending answers wait."""
        with self._wake:
            self._paused = True
            self._wake.wait_for(lambda: not self._at_work)
        if self.stream:
            torch.cuda.current_stream(self.reader.device).wait_stream(self.stream)

    def resume(self) -> None:
        """Continues after a pause; first with the orders that came meanwhile."""
        if self.stream:  # weights that were copied meanwhile must be there
            self.stream.wait_stream(torch.cuda.current_stream(self.reader.device))
        with self._wake:
            self._paused = False
            self._wake.notify_all()

    def stop(self) -> None:
        """Ends the thread and cancels pending requests."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        torch.set_num_threads(self.threads)
        if self.stream:
            self.stream.wait_stream(torch.cuda.default_stream(self.reader.device))
        usual = sys.getswitchinterval()
        with torch.cuda.stream(self.stream) if self.stream else nullcontext():
            while self._wait():
                # A GPU that has answered must not wait until the event loop's thread lets go of the interpreter.
                sys.setswitchinterval(SWITCH_S if self.reader.device.type == "cuda" else usual)
                with self.reader.reading():
                    while self._work():
                        pass
                sys.setswitchinterval(usual)
            self._give_up(EngineError("the engine was closed before the answer was complete"))
        if self.stream:
            self.stream.synchronize()

    def _wait(self) -> bool:
        """Sleeps until there is something to do; False when it is time to end."""
        with self._wake:
            self._at_work = False
            self._wake.notify_all()
            self._wake.wait_for(lambda: self._closed or (not self._paused and (self._orders or self.scheduler.busy)))
            self._at_work = not self._closed
            return self._at_work

    def _work(self) -> bool:
        """One step, if there is anything to do."""
        try:
            self._obey()
            self.scheduler.forget_the_given_up()
            if self._closed or self._paused or not self.scheduler.busy:
                return False
            self.scheduler.admit()
            self._step(self.scheduler.spans(self.runner.chunk))
        except Exception as error:  # whatever broke, pending calls must be told
            log.exception("the local engine failed in a step; every episode is recomputed")
            self._give_up(EngineError(f"the local engine broke: {type(error).__name__}: {error}"))
        return True

    def _obey(self) -> None:
        """Runs every order, then raises if one failed: one failure loses no other order."""
        with self._wake:
            orders, self._orders = self._orders, []
        failure: Exception | None = None
        for do in orders:
            try:
                do()
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure

    def _step(self, spans: list[Span]) -> None:
        self.num_steps += 1
        complete: list[tuple[Request, Outcome]] = []
        try:
            for span, drawn in zip(spans, self.runner.run(spans), strict=True):
                if span.draws:
                    complete += self.scheduler.advance(span, drawn)
        finally:
            settle(complete)

    def _give_up(self, error: EngineError) -> None:
        """Nothing that was computed is trusted any more."""
        try:
            self._obey()
        except Exception:  # the thread must continue
            log.exception("the local engine failed in an order")
        settle([(request, error) for request in self.scheduler.requests()])
        self.scheduler.waiting.clear()
        for episode in list(self.scheduler.residents):
            self.scheduler.drop(episode)


class LocalEngine(EngineWorker):
    """A `TokenEngine` over a policy in memory.

    `max_tokens` is how many tokens are kept for all episodes together (by default as
    many as half of the free memory holds, or most of a GPU's), `max_length` how many one
    episode may have (the model's context unless given),
    `max_running` how many calls are computed at once. `threads` are torch's own; `graphs`
    are CUDA graphs. With `fold`, the policy's LoRA adapter is added to copies of the weights and
    costs no time. That is the default in float32, where nothing is lost by it; it takes as much memory
    again as the weights that it adapts. The path "pages", whose weights are copies anyway, always does so
    while no other adapter is set. Which path computes a model follows from trying (`paths.py`); `layout`
    asks for one: "pages" or "general". `training_bytes` is what training will take of the same GPU: by
    default the engine leaves it free. With `apart`, the engine keeps a copy of the trained weights and
    on a GPU computes on a stream of its own: it samples while `policy` trains, with the weights of the
    last `renew`.
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
        fold: bool | None = None,
        layout: Layout | None = None,
        training_bytes: int = 0,
        apart: bool = False,
    ) -> None:
        self.policy = name
        self.twin = Twin(policy) if apart else None
        self._tokenizer = tokenizer
        options = PathOptions(max_tokens, max_length, max_running, graphs, fold, layout, training_bytes)
        self.path = choose_path(self.twin.policy if self.twin else policy, options)
        self.max_length = self.path.longest
        self._adapters: set[str] = set()
        self._failure: str | None = None  # since the last `renew`
        # A stream whose kernels go first: a sampler's are small, and what trains has many in its queue.
        own = apart and policy.device.type == "cuda"
        stream = torch.cuda.Stream(policy.device, priority=-1) if own else None  # type: ignore[no-untyped-call]
        threads = threads or torch.get_num_threads()
        super().__init__(self.path, max_running=max_running, threads=threads, stream=stream)

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
    ) -> Generated:
        """Draws an answer with the adapter of this name, or by default with the policy as it is."""
        each = self.generate_each(
            [episode], prompt_ids, sampling=sampling, seeds=[seed], stop_ids=stop_ids, adapter=adapter
        )
        async with aclosing(each):
            return (await anext(each))[1]

    async def generate_each(
        self,
        episodes: Sequence[str],
        prompt_ids: list[int],
        *,
        sampling: SamplingConfig,
        seeds: Sequence[int],
        stop_ids: list[int],
        adapter: str = "",
    ) -> AsyncGenerator[tuple[list[int], Generated]]:
        """Draws an answer for each of several episodes with the same prompt: what `generate` draws for each alone.

        Gives each answer as it is complete, with the places of the episodes that drew it. Tokens that
        several have in common are computed once.
        """
        self._check(prompt_ids, sampling, adapter)
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        outcomes: list[tuple[int, Outcome]] = []

        def receive(place: int, outcome: Outcome) -> None:
            outcomes.append((place, outcome))
            arrived.set()

        stops = frozenset(stop_ids)
        requests = [
            Request(
                (adapter, episode) if adapter else episode,  # those of different adapters may have the same name
                prompt_ids,
                sampling,
                seed,
                stops,
                self.max_length,
                self._tokenizer,
                adapter,
                partial(receive, place),
                loop,
            )
            for place, (episode, seed) in enumerate(zip(episodes, seeds, strict=True))
        ]
        first, left = self.policy, len(requests)
        self.submit(*requests)
        try:
            while left:
                await arrived.wait()
                arrived.clear()
                same: dict[int, tuple[Outcome, list[int]]] = {}
                for place, outcome in outcomes:
                    same.setdefault(id(outcome), (outcome, []))[1].append(place)
                outcomes.clear()
                for outcome, places in same.values():
                    if isinstance(outcome, BaseException):
                        raise outcome
                    if self._failure:  # it would be of other weights than its name says
                        raise EngineError(self._failure)
                    policy = first if first == self.policy else f"{first}..{self.policy}"
                    left -= len(places)
                    yield sorted(places), replace(outcome, policy=f"{policy}+{adapter}" if adapter else policy)
        finally:
            for request in requests:  # of those that have their answer, nobody asks
                request.given_up = True

    def release(self, episode: str, *, adapter: str = "") -> None:
        self.drop((adapter, episode) if adapter else episode)

    def set_adapter(self, name: str, weights: AdapterWeights) -> None:
        """Adds an adapter that episodes can ask for, or replaces the one of this name.

        It is used in place of the policy's own adapter, if that has one. What was computed with an
        adapter that is replaced is forgotten; its pending answers are cancelled, so let them finish first.
        """
        if not name:
            raise InputError("an adapter needs a name; the empty one stands for the policy as it is")
        self.path.adapters.check(weights)
        self._adapters.add(name)

        def put() -> None:
            try:
                with self._whole(f"the adapter {name!r} could not be set"):
                    self.path.adapters.set(name, weights)
            except BaseException:
                self._adapters.discard(name)
                raise

        self.drop(adapter=name, then=put)

    def remove_adapter(self, name: str) -> None:
        """Forgets an adapter and what was computed with it. Pending answers are cancelled."""
        self._check_set(name)
        self._adapters.remove(name)

        def remove() -> None:
            with self._whole(f"the adapter {name!r} could not be removed"):
                self.path.adapters.remove(name)

        self.drop(adapter=name, then=remove)

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

        def renew_copies() -> None:
            with self._whole(f"the weights {name!r} could not be loaded"):
                self.reader.renew()
                if self.path.decoder:
                    self.path.decoder.renew()

        self.order(renew_copies)
        if keep:
            self.order(self.scheduler.age)
        else:
            self.drop()

    async def close(self) -> None:
        await asyncio.to_thread(self.stop)

    @contextmanager
    def _whole(self, failure: str) -> Iterator[None]:
        """What is done inside is done whole. If it fails, nothing is sampled with half of it, until `renew`."""
        try:
            yield
        except BaseException as error:
            self._failure = f"{failure}: {type(error).__name__}: {error}"
            raise

    def _check_set(self, adapter: str) -> None:
        if adapter not in self._adapters:
            known = ", ".join(map(repr, sorted(self._adapters))) or "none"
            raise InputError(f"the engine has no adapter {adapter!r}; set are: {known}")

    def _check(self, prompt_ids: list[int], sampling: SamplingConfig, adapter: str) -> None:
        if self._failure:
            raise EngineError(self._failure)
        if adapter:
            self._check_set(adapter)
        if not prompt_ids:
            raise InputError("the prompt is empty; a model needs at least one token to continue from")
        if len(prompt_ids) >= self.max_length:  # first: to look at every token of a huge prompt takes long
            limit = "the model's context" if self.max_length == self.reader.context else "what the engine can keep"
            raise ContextFullError(
                f"the conversation has {len(prompt_ids)} tokens and leaves no room for an answer; "
                f"{limit} is {self.max_length} tokens"
            )
        least, most = min(prompt_ids), max(prompt_ids)
        if least < 0 or most >= self.reader.vocabulary:
            raise InputError(f"prompt ids from {least} to {most}: the vocabulary is 0 to {self.reader.vocabulary - 1}")
        if any(sampling.stop) and self._tokenizer is None:
            raise InputError("stop texts need the model's tokenizer; give it as tokenizer=")


class AdapterEngine:
    """One adapter of a local engine as a `TokenEngine` of its own; several of them are sampled in one batch.

    red = TemplateEngine(AdapterEngine(engine, "red"), template, sampling)
    """

    def __init__(self, engine: LocalEngine, name: str) -> None:
        self.engine, self.name = engine, name

    @property
    def policy(self) -> str:
        return f"{self.engine.policy}+{self.name}" if self.name else self.engine.policy

    async def generate(self, episode: str, prompt_ids: list[int], **asked: Any) -> Generated:
        return await self.engine.generate(episode, prompt_ids, adapter=self.name, **asked)

    def generate_each(
        self, episodes: Sequence[str], prompt_ids: list[int], **asked: Any
    ) -> AsyncGenerator[tuple[list[int], Generated]]:
        return self.engine.generate_each(episodes, prompt_ids, adapter=self.name, **asked)

    def release(self, episode: str) -> None:
        self.engine.release(episode, adapter=self.name)

    async def close(self) -> None:
        """Leaves the engine open: whoever made it closes it."""
