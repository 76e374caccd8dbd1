"""Token engines of one attempt on a worker: they sample with the version that the attempt, or each call, holds."""

from __future__ import annotations

from typing import Any

from bough.cluster.weights import Version
from bough.engines.base import Generated
from bough.online.versions import Versions


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
