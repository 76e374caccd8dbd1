"""Workers kept warm: as many at once as there are cores for programs, and one for each open session."""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import Self

from bough.sandbox.base import Answer, Limits, Result
from bough.sandbox.walls import Walls, choose
from bough.sandbox.worker import Worker


class Sandbox:
    """Runs programs behind walls on this machine.

    `warm_up` is code of ours that the keeper runs in advance, such as imports, so that
    each program finds it done. `hidden` packages cannot be imported inside. `unsafe`
    allows to go without walls where the machine has none to offer.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        workers: int | None = None,
        walls: Walls | None = None,
        unsafe: bool = False,
        warm_up: str = "",
        hidden: tuple[str, ...] = (),
    ) -> None:
        self.limits = limits or Limits()
        self.walls = choose(unsafe=unsafe, wanted=walls)
        self.workers = workers or max(1, len(os.sched_getaffinity(0)))
        self.warm_up, self.hidden = warm_up, hidden
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._turns = asyncio.Semaphore(self.workers)
        self._closed = False

    async def run(self, code: str, *, timeout_s: float | None = None, answer: Answer | None = None) -> Result:
        """Runs a program in a process of its own."""
        async with self._turns:
            worker = await self.take()
            try:
                return await worker.run(code, timeout_s=timeout_s, answer=answer)
            finally:
                self.give_back(worker)

    def session(self) -> LocalSession:
        """A notebook: names live on between its cells."""
        return LocalSession(self)

    async def close(self) -> None:
        self._closed = True
        for worker in [*self._idle, *self._busy]:
            worker.kill()
        self._idle, self._busy = [], set()

    async def take(self) -> Worker:
        """A worker that nobody else uses: a warm one, or a new one."""
        if self._idle:
            worker = self._idle.pop()
            self._busy.add(worker)
        else:
            worker = Worker(self.walls, self.limits, self.warm_up, self.hidden)
            self._busy.add(worker)
            try:
                await worker.start()
            except BaseException:
                self._busy.discard(worker)
                raise
        return worker

    def give_back(self, worker: Worker) -> None:
        """Keeps a clean worker for the next, and lets go of any other."""
        self._busy.discard(worker)
        if worker.clean and not self._closed and len(self._idle) < self.workers:
            self._idle.append(worker)
        else:
            worker.kill()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: TracebackType | None
    ) -> None:
        await self.close()


class LocalSession:
    """A worker of its own for as long as the session lasts."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._worker: Worker | None = None

    async def run(self, code: str, *, timeout_s: float | None = None, answer: Answer | None = None) -> Result:
        """Runs a cell. After one that was killed, the next starts with no names."""
        worker = self._worker = self._worker or await self._sandbox.take()
        try:
            return await worker.run(code, timeout_s=timeout_s, keep=True, answer=answer)
        finally:
            if not worker.clean:
                self._sandbox.give_back(worker)
                self._worker = None

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.reset()
            self._sandbox.give_back(worker)

    async def __aenter__(self) -> Self:
        # Had now, so that no cell's time is spent on starting it.
        self._worker = await self._sandbox.take()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
