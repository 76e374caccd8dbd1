"""Which weights a worker's episodes are played with, where new ones arrive while episodes are in flight.

An episode holds its version until it ends, or with `--swap-mid-episode` each call holds the
newest one. LoRA adapters are kept side by side under names, and the engine computes each
episode with its own. Other weights are in memory once: they are replaced when nothing holds
them, and what needs the new ones waits until then.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from bough.cluster.weights import Offer, Subscriber, Version, copy_weights
from bough.engines.base import EngineError, Generated
from bough.engines.local.engine import LocalEngine
from bough.policy.adapter_weights import AdapterWeights
from bough.policy.policy import Policy

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
