"""A pool of warm workers: one per core for programs, and one for each open session.

Waiting for a worker does not count towards the time limit of what needs it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial
from typing import Self

from bough import event_loop
from bough.sandbox.base import Answer, Result, SandboxLimits
from bough.sandbox.isolation import Isolation, choose, command
from bough.sandbox.worker import SandboxWorker

log = logging.getLogger(__name__)
LEAST_SESSIONS, SESSIONS_PER_CORE = 4, 16
OWN_MB, WARM_MB = 64.0, 256.0  # what a keeper itself may use, and its warm-up
PATIENCE_S = 60.0  # then a warning says what is waited for


class Sandbox:
    """Runs programs in isolation on this machine.

    At most `sessions` sessions are open at a time, by default as many as fit into memory if
    each uses its limit; another one waits until one is closed.

    `warm_up` is trusted code that the keeper runs in advance, such as imports, so that
    programs start faster. `hidden` packages cannot be imported inside; `packages` are further
    folders to import from, read-only. `unsafe` allows running without isolation where the
    machine offers none.
    """

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        *,
        workers: int | None = None,
        sessions: int | None = None,
        isolation: Isolation | None = None,
        unsafe: bool = False,
        warm_up: str = "",
        hidden: tuple[str, ...] = (),
        packages: tuple[str, ...] = (),
    ) -> None:
        self.limits = limits or SandboxLimits()
        self.isolation = choose(unsafe=unsafe, wanted=isolation)
        cores = len(os.sched_getaffinity(0))
        self.workers = workers or cores
        memory_mb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
        fitting = min(memory_mb // self.limits.memory_mb, SESSIONS_PER_CORE * cores)
        self.sessions = sessions or max(LEAST_SESSIONS, fitting)
        self.warm_up = warm_up
        self._command = partial(command, self.isolation, self.limits, warm_up=warm_up, hidden=hidden, packages=packages)
        self._idle: list[SandboxWorker] = []
        self._busy: set[SandboxWorker] = set()
        self._turns, self.places = asyncio.Semaphore(self.workers), asyncio.Semaphore(self.sessions)
        self._closed = self._warned = False

    async def run(self, code: str, *, timeout_s: float | None = None, answer: Answer | None = None) -> Result:
        """Runs a program in a process of its own.

        With `answer` it has a function `ask`, which passes a text to `answer` and returns its reply.
        """
        worker = await self.take(self._turns)
        try:
            return await worker.run(code, timeout_s=timeout_s, answer=answer)
        finally:
            self.give_back(worker, self._turns)

    def session(self) -> Session:
        """A notebook: names persist between its cells."""
        return Session(self)

    async def close(self) -> None:
        self._closed = True
        for worker in [*self._idle, *self._busy]:
            worker.kill()
        self._idle, self._busy = [], set()

    async def take(self, places: asyncio.Semaphore) -> SandboxWorker:
        """A worker for exclusive use, a warm or a new one, as soon as there is a place: first come, first served."""
        with event_loop.not_counted():
            warning = asyncio.get_running_loop().call_later(PATIENCE_S, self._warn)
            try:
                await places.acquire()
            finally:
                warning.cancel()
            if self._idle:
                worker = self._idle.pop()
                self._busy.add(worker)
                return worker
            worker = SandboxWorker(self.isolation, self.limits, self._command, OWN_MB + WARM_MB * bool(self.warm_up))
            self._busy.add(worker)
            try:
                await worker.start()
            except BaseException:
                self.give_back(worker, places)
                raise
        return worker

    def give_back(self, worker: SandboxWorker, places: asyncio.Semaphore) -> None:
        """Keeps a clean worker for the next program, and ends any other."""
        self._busy.discard(worker)
        if worker.clean and not self._closed and len(self._idle) < self.workers:
            self._idle.append(worker)
        else:
            worker.kill()
        places.release()

    def _warn(self) -> None:
        if not self._warned:
            waits = f"a program waits for a sandbox since {PATIENCE_S:g} s, {self.sessions} sessions may be open"
            log.warning("%s; if nothing moves, lower --concurrency", waits)
        self._warned = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Session:
    """Cells that share their names, with a worker of their own until the session is closed.

    Between two cells every process of the session is paused; it continues with the next cell.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._worker: SandboxWorker | None = None

    async def run(self, code: str, *, timeout_s: float | None = None, answer: Answer | None = None) -> Result:
        """Runs a cell. After one that was killed, the next starts with no names.

        If a session used too much memory between two cells, the second is not run and its
        result has `killed`.
        """
        worker = await self._have_worker()
        try:
            return await worker.run(code, timeout_s=timeout_s, keep=True, answer=answer)
        finally:
            if not worker.clean and worker is self._worker:
                self._worker = None
                self._sandbox.give_back(worker, self._sandbox.places)

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            try:
                await worker.reset()
            finally:
                self._sandbox.give_back(worker, self._sandbox.places)

    async def _have_worker(self) -> SandboxWorker:
        if self._worker is None:
            self._worker = await self._sandbox.take(self._sandbox.places)
        return self._worker

    async def __aenter__(self) -> Self:
        await self._have_worker()  # started now, so that it does not count as a cell's time
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
