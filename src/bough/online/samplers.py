"""What samples from the policy in training: in this process the local engine, or vLLM."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

from bough.chat.template import ChatTemplate
from bough.engines.base import EngineError, Generated, TokenEngine
from bough.engines.chat import TemplateEngine
from bough.engines.local.engine import LocalEngine
from bough.event_loop import BackgroundLoop
from bough.methods.distill import OnlineConfig
from bough.policy.adapters import AdapterWeights
from bough.policy.policy import Policy
from bough.policy.recorded import uses_dropout
from bough.rollouts.agents import ModelAgent
from bough.rollouts.ray_weights import Offer, Subscriber, Version, copy_weights
from bough.rollouts.runner import Attempt
from bough.training.plan import training_bytes

log = logging.getLogger(__name__)


class Sampler(Protocol):
    """Samples between `renew`, after the weights have changed, and `pause`, before they are used otherwise.

    One that `overlaps` has a copy of the weights and samples after `pause`, too.
    """

    @property
    def overlaps(self) -> bool:
        """Whether it samples while the policy trains."""

    @property
    def worker_losses(self) -> int:
        """Worker processes that were lost so far."""

    def renew(self, name: str) -> None:
        """From now on samples from the policy as it is; records call these weights `name`. EngineError if it cannot."""

    def pause(self) -> None:
        """Waits until the policy, and the memory it trains in, are free for other uses."""

    async def close(self) -> None:
        """Shuts down."""


class TokenSampler(Sampler, Protocol):
    """A sampler in this process."""

    @property
    def tokens(self) -> TokenEngine:
        """The engine that episodes are played with."""


class LocalSampler:
    """The local engine.

    With `max_staleness` 0 it reads the very weights that are trained. With more it has a copy of
    them, on a GPU a stream of its own too, gets the new ones between two of its steps, and what is in
    flight continues with them.
    """

    worker_losses = 0

    def __init__(self, config: OnlineConfig, policy: Policy, template: ChatTemplate) -> None:
        self._ahead = config.rollouts.max_staleness > 0
        self.overlaps = self._ahead and not _collides(config, policy)
        self.tokens = LocalEngine.of(
            policy,
            tokenizer=template.tokenizer,
            max_length=config.calls.max_length,
            max_running=config.rollouts.concurrency,
            training_bytes=_training_bytes(config, policy),
            apart=self.overlaps,
        )
        if self.tokens.twin and not policy.has_adapter:
            log.warning(
                "The sampler keeps its own copy of all weights (%.2f GB), so that it samples while the policy trains.",
                self.tokens.twin.num_bytes / 1e9,
            )

    def renew(self, name: str) -> None:
        if self._ahead:
            self.tokens.pause()  # between two of its steps
        self.tokens.renew(name, keep=self._ahead)
        if self._ahead:
            self.tokens.resume()
        else:
            self.tokens.rest()

    def pause(self) -> None:
        if self.overlaps:
            return
        if self._ahead:
            self.tokens.pause()
        else:
            self.tokens.rest()

    async def close(self) -> None:
        await self.tokens.close()


def open_sampler(config: OnlineConfig, policy: Policy, template: ChatTemplate, loop: BackgroundLoop) -> TokenSampler:
    """The sampler that the settings name. `loop` is the event loop that episodes are played on."""
    if config.sampler.engine == "local":
        return LocalSampler(config, policy, template)
    from bough.online.vllm import open_vllm

    return open_vllm(config, policy, template, loop)


def _training_bytes(config: OnlineConfig, policy: Policy) -> int:
    """What the engine leaves to training on a GPU: its pages stay in memory while the policy learns."""
    if policy.device.type != "cuda":
        return 0
    budget, checkpointing = config.machine.token_budget, config.machine.gradient_checkpointing
    assert budget is not None, "a run has chosen it"
    return training_bytes(policy.base, budget, adapter=policy.has_adapter, gradient_checkpointing=checkpointing)


def _collides(config: OnlineConfig, policy: Policy) -> bool:
    """Whether sampler and trainer must not compute at the same time. Said once if so."""
    if policy.device.type != "cuda":
        return False
    # Both would use the GPU's random numbers, or wait for all of it, while the engine records its graphs.
    hindrances = {"--cuda-graphs": config.machine.cuda_graphs, "dropout": uses_dropout(policy.model)}
    found = [name for name, holds in hindrances.items() if holds]
    if found:
        log.warning("The sampler waits while the policy trains: it cannot sample beside %s.", " and ".join(found))
    return bool(found)


# Which weights a worker's episodes are played with, where new ones arrive while episodes are in flight.
# An episode holds its version until it ends, or with `--swap-mid-episode` each call holds the newest one. LoRA
# adapters are kept side by side under names, and the engine computes each episode with its own. Other weights are in
# memory once: they are replaced when nothing holds them, and what needs the new ones waits until then.

# How long an episode waits to hear of its version, in seconds: the news was sent before the episode.
NEWS_TIMEOUT_S = 60.0


class News:
    """The versions that a worker has heard of, on the event loop that it plays on."""

    def __init__(self, subscriber: Subscriber, timeout_s: float = NEWS_TIMEOUT_S) -> None:
        self.subscriber, self._timeout_s = subscriber, timeout_s
        self._heard = asyncio.Event()

    def hear(self, offers: Iterable[Offer]) -> None:
        self.subscriber.hear(offers)
        self._heard.set()
        self._heard = asyncio.Event()

    async def choose(self, wanted: Version) -> Version:
        """The version to play with. Waits until the wanted one, or a later one, was heard of."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while (found := self.subscriber.choose(wanted)) is None:
                    await self._heard.wait()
        except TimeoutError:
            waited = f"{self._timeout_s:g} s"
            raise EngineError(f"the worker has not heard of the weights {wanted.name} for {waited}") from None
        return found


class Versions(ABC):
    """Samples with versions that are held."""

    def __init__(self, engine: LocalEngine, news: News) -> None:
        self.engine, self.news = engine, news
        # First come, first served: those that want the old version cannot keep the new one out.
        self._door = asyncio.Lock()

    @asynccontextmanager
    async def holding(self, wanted: Version) -> AsyncIterator[Version]:
        """Within it a version is held: see `acquire`."""
        version = await self.acquire(wanted)
        try:
            yield version
        finally:
            self.release(version)

    async def acquire(self, wanted: Version) -> Version:
        """Holds a version until `release`: the wanted one, or the newest if that is no longer kept.

        Raises EngineError if the weights cannot be had.
        """
        async with self._door:
            return await self._take(wanted)

    @abstractmethod
    async def _take(self, wanted: Version) -> Version: ...

    @abstractmethod
    def release(self, version: Version) -> None: ...

    @abstractmethod
    async def generate(self, version: Version, episode: str, prompt_ids: list[int], **asked: Any) -> Generated:
        """Draws an answer with a version that is held."""

    @abstractmethod
    def forget(self, version: Version, episode: str) -> None:
        """Forgets what was computed for an episode."""


class OneAtATime(Versions):
    """The weights of `policy`, which the engine reads."""

    def __init__(self, engine: LocalEngine, policy: Policy, news: News) -> None:
        super().__init__(engine, news)
        self.policy = policy
        self._loaded: Version | None = None
        self._num_holders = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def _take(self, wanted: Version) -> Version:
        if wanted != self._loaded and await self.news.choose(wanted) != self._loaded:
            await self._idle.wait()
            if (version := await self.news.choose(wanted)) != self._loaded:  # it may have gone meanwhile
                await self._load(version)
        assert self._loaded is not None
        self._num_holders += 1
        self._idle.clear()
        return self._loaded

    def release(self, version: Version) -> None:
        assert version == self._loaded
        self._num_holders -= 1
        if not self._num_holders:
            self._idle.set()

    async def generate(self, version: Version, episode: str, prompt_ids: list[int], **asked: Any) -> Generated:
        return replace(await self.engine.generate(episode, prompt_ids, **asked), policy=version.name)

    def forget(self, version: Version, episode: str) -> None:  # noqa: ARG002  there is one
        self.engine.release(episode)

    async def _load(self, version: Version) -> None:
        self._loaded = None  # if it fails, the policy may have half of the weights
        copying = asyncio.ensure_future(asyncio.to_thread(self._copy, version))
        try:
            await asyncio.shield(copying)
        except asyncio.CancelledError:  # an episode's time may be up; its thread goes on, and must not meet the next
            await asyncio.wait([copying])
            raise
        self._loaded = version

    def _copy(self, version: Version) -> None:
        weights = self.news.subscriber.fetch(version)
        self.engine.rest()
        copy_weights(weights, self.policy)
        self.engine.renew(version.name)
        self.engine.rest()


class ByName(Versions):
    """LoRA adapters of an engine, one for each version that is held, and the newest."""

    def __init__(self, engine: LocalEngine, adapter_config: Mapping[str, Any], news: News) -> None:
        super().__init__(engine, news)
        self.adapter_config = adapter_config
        self._loaded: dict[int, Version] = {}
        self._holders: Counter[int] = Counter()

    async def _take(self, wanted: Version) -> Version:
        version = wanted if wanted.number in self._loaded else await self.news.choose(wanted)
        if version.number not in self._loaded:
            weights = await asyncio.to_thread(self._read, version)
            self.engine.set_adapter(_adapter(version), weights)
            self._loaded[version.number] = version
        self._holders[version.number] += 1
        self._tidy()
        return version

    def release(self, version: Version) -> None:
        self._holders[version.number] -= 1
        self._tidy()

    async def generate(self, version: Version, episode: str, prompt_ids: list[int], **asked: Any) -> Generated:
        drawn = await self.engine.generate(episode, prompt_ids, adapter=_adapter(version), **asked)
        return replace(drawn, policy=version.name)

    def forget(self, version: Version, episode: str) -> None:
        self.engine.release(episode, adapter=_adapter(version))

    def _read(self, version: Version) -> AdapterWeights:
        return AdapterWeights.of_tensors(self.news.subscriber.fetch(version), self.adapter_config)

    def _tidy(self) -> None:
        """Removes adapters that nothing holds and that no new episode will ask for."""
        newest = self.news.subscriber.newest
        for number in [number for number in self._loaded if not self._holders[number]]:
            if newest is None or number < newest.number:
                self.engine.remove_adapter(_adapter(self._loaded.pop(number)))
                del self._holders[number]


def _adapter(version: Version) -> str:
    """The engine's name of a version: unlike that in records, it never comes twice."""
    return f"version-{version.number}"


# Token engines of one attempt on a worker: they sample with the version that the attempt, or each call, holds.


class HeldTokens:
    """A `TokenEngine` that samples with one version. Whoever makes it holds the version until the attempt ends."""

    def __init__(self, versions: Versions, version: Version) -> None:
        self._versions, self._version = versions, version

    @property
    def policy(self) -> str:
        return self._version.name

    async def generate(self, episode: str, prompt_ids: list[int], **asked: Any) -> Generated:
        return await self._versions.generate(self._version, episode, prompt_ids, **asked)

    def release(self, episode: str) -> None:
        self._versions.forget(self._version, episode)

    async def close(self) -> None:
        """Leaves the engine open: the worker closes it."""


class NewestTokens:
    """A `TokenEngine` that samples each call with the newest version that the worker has heard of, at least `first`."""

    def __init__(self, versions: Versions, first: Version) -> None:
        self._versions, self._first = versions, first
        self._used: set[Version] = set()

    @property
    def policy(self) -> str:
        return self._first.name

    async def generate(self, episode: str, prompt_ids: list[int], **asked: Any) -> Generated:
        newest = self._versions.news.subscriber.newest
        wanted = newest if newest is not None and newest.number > self._first.number else self._first
        async with self._versions.holding(wanted) as version:
            self._used.add(version)
            return await self._versions.generate(version, episode, prompt_ids, **asked)

    def release(self, episode: str) -> None:
        for version in self._used:
            self._versions.forget(version, episode)

    async def close(self) -> None:
        """Leaves the engine open: the worker closes it."""


# The policy as an agent at each temperature that attempts are sampled at.


class TemperatureAgents:
    """Says who plays an attempt: the model at the attempt's temperature."""

    def __init__(self, config: OnlineConfig, tokens: TokenEngine, template: ChatTemplate) -> None:
        sampling, held_out = config.sampling, config.held_out
        self._engines = {
            temperature: TemplateEngine(tokens, template, sampling.model_copy(update={"temperature": temperature}))
            for temperature in {*sampling.all_temperatures, held_out.temperature}
        }

    def __call__(self, attempt: Attempt, tokens: TokenEngine | None = None) -> ModelAgent:
        """The agent, on the tokens of another engine if one is given."""
        assert attempt.temperature is not None
        engine = self._engines[attempt.temperature]
        return ModelAgent(engine if tokens is None else engine.over(tokens))


# Where the time of an online run goes: sampling, training or neither, and how much is sampled meanwhile.


class Meter:
    """Adds up time and tokens between two laps. May be used from any thread.

    Time counts as sampling while the engine has a request; unless sampling overlaps with
    training, not while the policy trains. Time in which both happen counts as both, and as overlap.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, *, overlaps: bool = False) -> None:
        self._clock, self._lock, self._overlaps = clock, threading.Lock(), overlaps
        self._requests = self._episodes = 0
        self._in_training = False
        self._since = clock()
        self._reset()

    def request(self) -> None:
        with self._lock:
            self._advance()
            self._requests += 1

    def answer(self, num_tokens: int) -> None:
        """A request has ended, with this many sampled tokens."""
        with self._lock:
            self._advance()
            self._requests -= 1
            self._tokens += num_tokens

    def episodes(self, count: int) -> None:
        """This many episodes are in flight from now on."""
        with self._lock:
            self._advance()
            self._episodes = count

    def training(self, now: bool) -> None:
        """The policy is in training from now on, or no longer."""
        with self._lock:
            self._advance()
            self._in_training = now

    def lap(self) -> dict[str, float]:
        """The numbers since the last lap."""
        with self._lock:
            self._advance()
            seconds = max(self._seconds, 1e-9)
            values = {
                "batch_seconds": self._seconds,
                "sampled_tokens_per_s": self._tokens / seconds,
                "sampling_share": self._sampling / seconds,
                "training_share": self._training / seconds,
                "overlap_share": self._overlap / seconds,
                "idle_share": max(0.0, 1 - (self._sampling + self._training - self._overlap) / seconds),
                "episodes_in_flight": self._episode_seconds / seconds,
            }
            self._reset()
            return values

    def _reset(self) -> None:
        self._seconds = self._sampling = self._training = self._overlap = self._episode_seconds = 0.0
        self._tokens = 0

    def _advance(self) -> None:
        now = self._clock()
        passed, self._since = now - self._since, now
        self._seconds += passed
        self._episode_seconds += passed * self._episodes
        samples = self._requests > 0 and (self._overlaps or not self._in_training)
        self._sampling += passed * samples
        self._training += passed * self._in_training
        self._overlap += passed * (samples and self._in_training)


class MeteredEngine:
    """A token engine whose requests a meter sees."""

    def __init__(self, engine: TokenEngine, meter: Meter) -> None:
        self._engine, self._meter = engine, meter

    @property
    def policy(self) -> str:
        return self._engine.policy

    @property
    def streams(self) -> bool:
        return bool(getattr(self._engine, "streams", False))

    async def generate(self, episode: str, prompt_ids: list[int], **asked: Any) -> Generated:
        self._meter.request()
        num_tokens = 0
        try:
            drawn = await self._engine.generate(episode, prompt_ids, **asked)
            num_tokens = len(drawn.completion_ids)
            return drawn
        finally:
            self._meter.answer(num_tokens)

    def release(self, episode: str) -> None:
        self._engine.release(episode)

    async def close(self) -> None:
        await self._engine.close()
