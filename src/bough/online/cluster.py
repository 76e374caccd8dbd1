"""The workers of a cluster as what samples from the policy in training: each version of the weights is sent to them."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Any, Self

import torch

from bough.chat.template import load_template
from bough.config.training import OnlineConfig
from bough.engines.base import EngineError, Generated
from bough.engines.local.engine import LocalEngine
from bough.environments.base import Environment
from bough.errors import InputError
from bough.event_loop import BackgroundLoop
from bough.online.samplers import Meter, TemperatureAgents
from bough.policy.adapters import ACTOR, AdapterWeights
from bough.policy.load import base_and_adapter, load_model
from bough.policy.policy import Policy
from bough.rollouts.collect import Attempt, Images, Runner
from bough.rollouts.episode import ModelAgent
from bough.rollouts.ray_weights import Offer, Publisher, Subscriber, Version, copy_weights, trained_weights
from bough.rollouts.ray_workers import WorkerSpec, cluster_runner
from bough.training.run import precision
from bough.types import Trajectory

log = logging.getLogger(__name__)


class ClusterSampler:
    """Workers that play whole episodes.

    They have weights of their own, so with `max_staleness` above 0 they play while the policy
    trains. With 0, nothing is in flight between two versions.
    """

    def __init__(
        self, config: OnlineConfig, policy: Policy, environment_class: type[Environment], loop: BackgroundLoop
    ) -> None:
        if config.sampled_by.engine != "local":
            raise InputError(
                f"--engine {config.sampled_by.engine} does not go with --cluster: workers sample by themselves"
            )
        self.overlaps = config.rollouts.max_staleness > 0
        self._policy, self._loop = policy, loop
        # The version in training, those that a batch to train on may still come from, and one that is on its way.
        self.publisher = Publisher(keep=config.rollouts.max_staleness + 2)
        self._stack = AsyncExitStack()
        self._sent: Future[None] | None = None
        spec = WorkerSpec(environment_class, PolicyAgents.of(config, policy), config.limits)
        learners = config.cluster.learners
        trains_on_gpu = policy.device.type == "cuda" and config.cluster.gpus_per_worker is None
        opened = cluster_runner(
            config.cluster,
            spec,
            concurrency=config.rollouts.concurrency,
            uses_gpu=True,
            # Each learner trains on a GPU. A user who sets the GPUs of a worker may share it.
            reserved_gpus=learners if trains_on_gpu and learners > 1 else 0,
            # A single learner is the driver, which is not a process of Ray's.
            reserved_cpus=learners if learners > 1 else 0,
            trains_here=trains_on_gpu and learners == 1,
        )
        self.runner = loop.run(self._stack.enter_async_context(opened))

    @property
    def worker_losses(self) -> int:
        return self.runner.worker_losses

    def renew(self, name: str) -> None:
        self.publisher.publish(name, trained_weights(self._policy))
        # It is not waited for: a worker that does not answer must not hold up the others. An
        # episode that arrives before the news waits for it on the worker.
        sending = self.runner.renew(name, self.publisher.offers)
        self._sent = asyncio.run_coroutine_threadsafe(sending, self._loop.loop)

    def pause(self) -> None:
        """The policy is not shared with the workers."""

    async def close(self) -> None:
        if self._sent is not None:
            self._sent.cancel()
        await self._stack.aclose()


class VersionedRunner:
    """Hands out attempts with the newest version at that time, and meters what comes back."""

    def __init__(self, runner: Runner, publisher: Publisher, meter: Meter) -> None:
        self._runner, self._publisher, self._meter = runner, publisher, meter

    async def play(self, attempt: Attempt, *, episode: str | None = None) -> tuple[Trajectory, Images]:
        self._meter.request()
        num_tokens = 0
        try:
            versioned = VersionedAttempt.of(attempt, self._publisher.newest)
            record, images = await self._runner.play(versioned, episode=episode)
            num_tokens = int(str(record.info.get("completion_tokens", 0)))
            return record, images
        finally:
            self._meter.answer(num_tokens)


# The policy in training on a worker of a cluster: the same base model, with the weights that the trainer sends.

PROBE = "probe"


@dataclass(frozen=True)
class VersionedAttempt(Attempt):
    """An attempt that is to be played with a version of the weights."""

    version: Version | None = None

    @classmethod
    def of(cls, attempt: Attempt, version: Version) -> Self:
        return cls(**{one.name: getattr(attempt, one.name) for one in fields(Attempt)}, version=version)


@dataclass(frozen=True)
class PolicyAgents:
    """Makes a worker's agents. `adapter` is peft's configuration of the actor, None where all weights are trained.

    The worker needs no adapter files: it gets the shape of the actor from here and its weights from the trainer.
    """

    config: OnlineConfig
    adapter: Any
    max_running: int

    @classmethod
    def of(cls, config: OnlineConfig, policy: Policy) -> Self:
        adapter = policy.model.peft_config[ACTOR] if policy.has_adapter else None
        concurrency = config.rollouts.concurrency
        # A quick worker may be given twice its share.
        share = 2 * ceil(concurrency / (config.cluster.workers or 1))
        return cls(config, adapter, min(concurrency, share))

    async def __call__(self) -> WorkerAgents:
        return await asyncio.to_thread(self._made)

    def _made(self) -> WorkerAgents:
        config = self.config
        template = load_template(base_and_adapter(config.model)[0], config.calls.chat_template)
        policy, news = load_sampling_policy(config, self.adapter), News(Subscriber())
        options = {
            "tokenizer": template.tokenizer, "max_length": config.calls.max_length, "max_running": self.max_running,
        }  # fmt: skip
        by_name = policy.has_adapter and config.rollouts.max_staleness
        versions: Versions | None = open_by_name(policy, news, options) if by_name else None
        versions = versions or OneAtATime(LocalEngine.of(policy, **options), policy, news)
        agents = TemperatureAgents(config, versions.engine, template)
        return WorkerAgents(versions, agents, swaps=config.cluster.swap_mid_episode)


class WorkerAgents:
    """Plays each attempt with its version of the weights, or with `swaps` each call with the newest."""

    def __init__(self, versions: Versions, agents: TemperatureAgents, *, swaps: bool) -> None:
        self._versions, self._agents, self._swaps = versions, agents, swaps

    @asynccontextmanager
    async def playing(self, attempt: Attempt) -> AsyncIterator[ModelAgent]:
        assert isinstance(attempt, VersionedAttempt) and attempt.version is not None
        if self._swaps:
            yield self._agents(attempt, VersionedTokens(self._versions, attempt.version, swaps=True))
            return
        # Before the episode begins: the time limit of an episode does not count the wait for weights.
        async with self._versions.holding(attempt.version) as version:
            yield self._agents(attempt, VersionedTokens(self._versions, version, swaps=False))

    async def renew(self, name: str, weights: Any) -> None:  # noqa: ARG002  every offer has its own name
        """Hears of the versions that there are now. They are fetched when an episode needs them."""
        self._versions.news.hear(weights)

    async def close(self) -> None:
        await self._versions.engine.close()


def load_sampling_policy(config: OnlineConfig, adapter: Any) -> Policy:
    """The trainer's policy without its weights: what it trains is not set yet."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    autocast = precision(config, device)
    # As the trainer has them: frozen weights in the type they are computed with, trained ones in float32.
    dtype = autocast if autocast and adapter is not None else torch.float32
    name = base_and_adapter(config.model)[0]
    model = load_model(name, dtype=dtype, device=device, quantize=config.lora.qlora)
    if adapter is not None:
        from peft import get_peft_model

        model = get_peft_model(model, adapter, adapter_name=ACTOR)
    policy = Policy(model, attention=config.machine.attention, autocast=autocast, device=device)
    return policy.eval().requires_grad_(False)


def open_by_name(policy: Policy, news: News, options: Mapping[str, Any]) -> ByName | None:
    """Versions side by side; None where the engine cannot have such adapters by name."""
    engine = LocalEngine.of(policy, fold=False, **options)
    try:
        engine.set_adapter(PROBE, AdapterWeights.of(policy.model))
        engine.remove_adapter(PROBE)
    except InputError as error:
        log.warning("Workers take new weights when all their episodes have ended: %s.", error)
        engine.stop()
        return None
    return ByName(engine, policy.model.peft_config[ACTOR].to_dict(), news)


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
            raise EngineError(f"the worker did not receive the weights {wanted.name} within {waited}") from None
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
        except asyncio.CancelledError:  # an episode's time may be up; its thread continues, and must not meet the next
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


class VersionedTokens:
    """The `TokenEngine` of one attempt: it samples with the version that the attempt holds.

    With `swaps` each call holds a version instead: the newest that the worker has heard of, at least that one.
    """

    def __init__(self, versions: Versions, version: Version, *, swaps: bool) -> None:
        self._versions, self._version, self._swaps = versions, version, swaps
        self._used = {version}

    @property
    def policy(self) -> str:
        return self._version.name

    async def generate(self, episode: str, prompt_ids: list[int], **asked: Any) -> Generated:
        if not self._swaps:
            return await self._versions.generate(self._version, episode, prompt_ids, **asked)
        newest = self._versions.news.subscriber.newest
        wanted = newest if newest is not None and newest.number > self._version.number else self._version
        async with self._versions.holding(wanted) as version:
            self._used.add(version)
            return await self._versions.generate(version, episode, prompt_ids, **asked)

    def release(self, episode: str) -> None:
        for version in self._used:
            self._versions.forget(version, episode)

    async def close(self) -> None:
        """Leaves the engine open: the worker closes it."""
