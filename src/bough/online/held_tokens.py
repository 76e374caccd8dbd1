"""The token engine of one attempt on a worker: every call is sampled by the version that the attempt holds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from bough.cluster.weights import Version
from bough.engines.base import Chat, Generated
from bough.environments.isolated import Isolated
from bough.online.versions import Versions
from bough.rollouts.agents import ModelAgent


class HeldTokens:
    """A `TokenEngine`. The version is held from the first call until the last chat is closed.

    With `swaps`, each call holds the newest version that the worker has heard of instead.
    """

    def __init__(self, versions: Versions, wanted: Version, *, swaps: bool) -> None:
        self._versions, self._wanted, self._swaps = versions, wanted, swaps
        self._held: Version | None = None
        self._used: set[Version] = set()
        self._num_chats = 0
        self._lock = asyncio.Lock()  # an agent of the user's own may make calls at the same time

    @property
    def policy(self) -> str:
        return self._wanted.name

    def open(self) -> None:
        """A chat begins; `release` ends it."""
        self._num_chats += 1

    async def generate(self, episode: str, prompt_ids: list[int], **asked: Any) -> Generated:
        if not self._swaps:
            return await self._generate(await self._hold(), episode, prompt_ids, **asked)
        newest = self._versions.news.subscriber.newest
        version = await self._versions.acquire(newest or self._wanted)
        try:
            return await self._generate(version, episode, prompt_ids, **asked)
        finally:
            self._versions.release(version)

    def release(self, episode: str) -> None:
        for version in self._used:
            self._versions.forget(version, episode)
        self._num_chats -= 1
        if not self._num_chats and self._held is not None:
            self._versions.release(self._held)
            self._held = None

    async def close(self) -> None:
        """Leaves the engine open: the worker closes it."""

    async def _hold(self) -> Version:
        async with self._lock:
            if self._held is None:
                self._held = await self._versions.acquire(self._wanted)
            return self._held

    async def _generate(self, version: Version, episode: str, prompt_ids: list[int], **asked: Any) -> Generated:
        self._used.add(version)
        return await self._versions.generate(version, episode, prompt_ids, **asked)


@dataclass(frozen=True)
class HoldingAgent:
    """A model whose chats hold a version."""

    agent: ModelAgent
    tokens: HeldTokens

    @property
    def name(self) -> str:
        return self.agent.name

    def enter(self, environment: Isolated, *, episode: str, seed: int) -> Chat:
        self.tokens.open()
        return self.agent.enter(environment, episode=episode, seed=seed)

    async def close(self) -> None:
        await self.agent.close()
