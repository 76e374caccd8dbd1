"""A pool of workers for a driver without an event loop: it starts calls and gathers their results.

A worker that is lost is replaced by a new object when the cluster has room. What the lost one knew is
gone: the caller gives its work to the workers that are left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any

from bough.cluster.dispatch import ReadyWorker
from bough.cluster.pool import WorkerPool
from bough.cluster.remote_worker import WorkerLostError
from bough.event_loop import BackgroundLoop

POLL_S = 0.5


class Actor:
    """An object in a worker process. `number` is its own; a replacement has another one."""

    def __init__(self, worker: ReadyWorker, call: Callable[..., Future[Any]]) -> None:
        self.number = worker.number
        self._worker, self._call = worker, call

    @property
    def lost(self) -> bool:
        return self._worker.lost.is_set()

    def start(self, method: str, *given: Any) -> Future[Any]:
        """Calls a method; the result is for `Actors.gather` or `Actors.result`."""
        return self._call(self._worker, method, *given)


class Actors:
    """The workers of a pool, which gets an event loop in a thread of its own."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool, self._known = pool, dict[int, Actor]()
        self._loop = BackgroundLoop("bough-cluster")
        self._loop.loop.call_soon_threadsafe(pool.start)

    @property
    def losses(self) -> int:
        """Workers that were lost while they were ready."""
        return self._pool.losses

    def living(self) -> list[Actor]:
        """The workers that are ready, at least one. Waits for new ones, but not for long where others are ready."""
        ready = self._loop.run(self._pool.settled())
        self._known = {one.number: self._known.get(one.number) or Actor(one, self._start) for one in ready}
        return list(self._known.values())

    def gather(self, started: Mapping[Actor, Future[Any]], each: Callable[[], None] = lambda: None) -> dict[Actor, Any]:
        """The results of calls by their workers; those of lost workers are missing. `each` is called while waiting.

        An error that an object raised is raised here.
        """
        found, waiting = {}, dict(started)
        while waiting:
            done, _ = wait(waiting.values(), timeout=POLL_S)
            for worker in [worker for worker, one in waiting.items() if one in done]:
                with suppress(WorkerLostError):
                    found[worker] = waiting.pop(worker).result()
            each()
        return found

    async def result(self, started: Future[Any]) -> Any:
        """The result of one call. WorkerLostError where its worker died."""
        return await asyncio.wrap_future(started)

    def close(self) -> None:
        """Ends all workers."""
        self._loop.run(self._pool.close())
        self._loop.close()

    def _start(self, worker: ReadyWorker, method: str, *given: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(self._answer(worker, method, *given), self._loop.loop)

    async def _answer(self, worker: ReadyWorker, method: str, *given: Any) -> Any:
        try:
            return await worker.remote.call(method, *given)
        except WorkerLostError as error:
            self._pool.lose(worker, error)
            raise
