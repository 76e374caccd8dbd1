"""A pool of warm workers: one per core for programs, and one for each active session.

Waiting for a worker does not count towards the time limit of what needs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from types import TracebackType
from typing import Self

from bough import event_loop
from bough.sandbox.base import Answer, Result, SandboxLimits
from bough.sandbox.isolation import Isolation, choose
from bough.sandbox.worker import SandboxWorker

LEAST_SESSIONS, SESSIONS_PER_CORE = 4, 16
REPLAY_S = 10.0  # cells that took longer than this together are not run again
IDLE_S = 10.0  # a session of such cells keeps its worker for this long after the last one
LOOK_S = 0.5


class Sandbox:
    """Runs programs in isolation on this machine.

    At most `sessions` sessions have a worker at a time; by default as many as fit into
    memory if each uses its limit. When another one needs a worker, the session that has
    been idle the longest loses its own, and runs its cells again when it is next used. A
    session whose cells would take too long for that is ended, which its next cell reports.

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
        self.warm_up, self.hidden, self.packages = warm_up, hidden, packages
        self._idle: list[SandboxWorker] = []
        self._busy: set[SandboxWorker] = set()
        self._turns = asyncio.Semaphore(self.workers)
        self._placed: dict[LocalSession, None] = {}  # those that have a worker, longest unused first
        self._door, self._changed = asyncio.Lock(), asyncio.Event()
        self._closed = False

    async def run(self, code: str, *, timeout_s: float | None = None, answer: Answer | None = None) -> Result:
        """Runs a program in a process of its own."""
        with event_loop.not_counted():
            await self._turns.acquire()
        try:
            with event_loop.not_counted():
                worker = await self.take()
            try:
                return await worker.run(code, timeout_s=timeout_s, answer=answer)
            finally:
                self.give_back(worker)
        finally:
            self._turns.release()

    def session(self) -> LocalSession:
        """A notebook: names persist between its cells."""
        return LocalSession(self)

    async def close(self) -> None:
        self._closed = True
        for worker in [*self._idle, *self._busy]:
            worker.kill()
        self._idle, self._busy = [], set()

    async def take(self) -> SandboxWorker:
        """A worker for exclusive use: a warm one, or a new one."""
        if self._idle:
            worker = self._idle.pop()
            self._busy.add(worker)
        else:
            worker = SandboxWorker(self.isolation, self.limits, self.warm_up, self.hidden, self.packages)
            self._busy.add(worker)
            try:
                await worker.start()
            except BaseException:
                self._busy.discard(worker)
                raise
        return worker

    def give_back(self, worker: SandboxWorker) -> None:
        """Keeps a clean worker for the next program, and ends any other."""
        self._busy.discard(worker)
        if worker.clean and not self._closed and len(self._idle) < self.workers:
            self._idle.append(worker)
        else:
            worker.kill()

    async def place(self, session: LocalSession) -> SandboxWorker:
        """A worker for a session, as soon as one is free: first come, first served."""
        async with self._door:
            while len(self._placed) >= self.sessions:
                idle = [other for other in self._placed if other.idle_s > 0]
                idle = [other for other in idle if other.replayable or other.idle_s > IDLE_S]
                if idle:
                    await min(idle, key=lambda other: not other.replayable).park()
                    continue
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), LOOK_S)
            self._placed[session] = None
        try:
            return await self.take()
        except BaseException:
            self.leave(session)
            raise

    def used(self, session: LocalSession) -> None:
        """Marks a session as the most recently used, so that it loses its worker last."""
        if session in self._placed:
            self._placed[session] = self._placed.pop(session)
        self._changed.set()

    def leave(self, session: LocalSession) -> None:
        self._placed.pop(session, None)
        self._changed.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: TracebackType | None
    ) -> None:
        await self.close()


class LocalSession:
    """A session with a worker of its own while there is room, and the cells to replay to restore its state."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._worker: SandboxWorker | None = None
        self._idle_since: float | None = None
        self._ended = False
        # The cells that were run with their time-outs, how long they took, and those to replay first.
        self._cells: list[tuple[str, float | None]] = []
        self._cells_s = 0.0
        self._replay: list[tuple[str, float | None]] = []

    @property
    def idle_s(self) -> float:
        """How long ago its last cell ended; 0 while one runs, or before the first."""
        if self._worker is None or self._idle_since is None:
            return 0.0
        return max(1e-9, time.monotonic() - self._idle_since)

    @property
    def replayable(self) -> bool:
        """Whether its cells can be run again."""
        return self._cells_s <= REPLAY_S

    async def run(self, code: str, *, timeout_s: float | None = None, answer: Answer | None = None) -> Result:
        """Runs a cell. After one that was killed, the next starts with no names."""
        if self._ended:
            self._ended = False
            return Result(killed="idle")
        self._idle_since = None
        try:
            await self._have_worker()
            while self._replay:
                result = await self._run(*self._replay.pop(0), None)
                if not result.alive:
                    return result
            return await self._run(code, timeout_s, answer)
        finally:
            self._idle_since = time.monotonic()
            self._sandbox.used(self)

    async def close(self) -> None:
        await self.park()
        self._forget()
        self._ended = False

    async def park(self) -> None:
        """Releases the worker, and keeps the cells to replay, or that they cannot be replayed."""
        again = [*self._cells, *self._replay]
        self._ended = not self.replayable
        self._forget()
        self._replay = [] if self._ended else again
        worker, self._worker = self._worker, None
        if worker is not None:
            try:
                await worker.reset()
            finally:
                self._sandbox.give_back(worker)
                self._sandbox.leave(self)

    async def _have_worker(self) -> SandboxWorker:
        if self._worker is None:
            with event_loop.not_counted():
                self._worker = await self._sandbox.place(self)
        return self._worker

    async def _run(self, code: str, timeout_s: float | None, answer: Answer | None) -> Result:
        worker, result = await self._have_worker(), None
        try:
            result = await worker.run(code, timeout_s=timeout_s, keep=True, answer=answer)
            return result
        finally:
            if not worker.clean:
                self._sandbox.give_back(worker)
                self._sandbox.leave(self)
                self._worker = None
            if result is None or not result.alive:
                self._forget()
            else:
                self._cells.append((code, timeout_s))
                # A cell that was interrupted or got answers from the host may not give the same result again.
                same = answer is None and not result.timed_out
                self._cells_s += result.duration_s if same else float("inf")

    def _forget(self) -> None:
        self._cells, self._cells_s, self._replay = [], 0.0, []

    async def __aenter__(self) -> Self:
        # Started now, so that it does not count as a cell's time.
        await self._have_worker()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
