"""The browser and its pages, shared by all episodes that run in one event loop.

A browser is started when the first episode asks for a page, and again whenever the last
one has died. Pages are used again; one on which something went wrong is not.

Only a few episodes start at the same time. If all do, the browser works on their pages in
turn, and all are ready at the end: until then the model has nothing to answer.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import ClassVar
from weakref import WeakKeyDictionary

from bough.environments.base import EnvironmentFailedError
from bough.worlds.web.browser import Browser
from bough.worlds.web.page import Page

MOST_IDLE_PAGES = 64
STARTS_PER_CORE = 2  # more than one: a page that starts also waits


class Pool:
    """Pages for episodes. Use `Pool.here()`. Hold `starts` while a page is taken and its problem starts."""

    _pools: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, Pool]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self.browser: Browser | None = None
        self.num_started = 0
        self.starts = asyncio.Semaphore(STARTS_PER_CORE * _num_cores())
        self._idle: list[Page] = []
        self._starting = asyncio.Lock()

    @classmethod
    def here(cls) -> Pool:
        """The running loop's pool. Browsers of loops that are closed are ended."""
        loop = asyncio.get_running_loop()
        for other, pool in list(cls._pools.items()):
            if other.is_closed():
                pool._end()
                del cls._pools[other]
        return cls._pools.setdefault(loop, cls())

    async def take(self, name: str = "") -> Page:
        """An idle page, preferably one that has `name` loaded, or a new one."""
        browser = await self._running()
        self._idle = [page for page in self._idle if page.browser is browser]
        if self._idle:
            place = next((i for i, page in enumerate(self._idle) if page.name == name), -1)
            return self._idle.pop(place)
        return await Page.open(browser)

    async def give_back(self, page: Page, *, sound: bool) -> None:
        """Takes a page back; one that is not `sound` is closed."""
        if page.browser is not self.browser or not page.browser.alive:
            return
        if sound and len(self._idle) < MOST_IDLE_PAGES:
            self._idle.append(page)
        else:
            with suppress(EnvironmentFailedError):
                await page.close()

    def shut(self) -> None:
        """Ends the browser; the next episode starts another."""
        self._end()

    async def _running(self) -> Browser:
        async with self._starting:
            if self.browser is None or not self.browser.alive:
                self._end()
                self.browser = await Browser.start()
                self.num_started += 1
            return self.browser

    def _end(self) -> None:
        self._idle.clear()
        if self.browser is not None:
            self.browser.kill()
            self.browser = None


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
