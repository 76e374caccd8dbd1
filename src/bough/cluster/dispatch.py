"""Which worker plays an attempt: the one that would finish it first, or one that plays nothing else meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean

from bough.cluster.remote_worker import Place, RemoteWorker

# Weight of the newest episode in a worker's seconds per episode.
NEWEST = 0.3


@dataclass(eq=False)
class ReadyWorker:
    """A worker that is ready. `seconds` is how long an episode takes on it; `alone` is set while one has it alone.

    `number` is its own; the worker that replaces it has another one.
    """

    remote: RemoteWorker
    place: Place
    number: int = 0
    in_flight: int = 0
    seconds: float | None = None
    alone: bool = False
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, seconds: float) -> None:
        """Notes how long an episode on it took."""
        self.seconds = seconds if self.seconds is None else (1 - NEWEST) * self.seconds + NEWEST * seconds


@dataclass(eq=False)
class _Waiting:
    """A request for a worker, perhaps for one that is reserved and is finishing its other episodes."""

    future: asyncio.Future[ReadyWorker]
    reserved: ReadyWorker | None = None


class Dispatcher:
    """Hands out workers. A worker plays up to `most` episodes at the same time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.workers: list[ReadyWorker] = []
        self.failure: Exception | None = None
        self._waiting: deque[_Waiting] = deque()
        self._waiting_alone: deque[_Waiting] = deque()

    async def take(self, *, alone: bool) -> ReadyWorker:
        """Waits for a worker, if `alone` for one without other episodes. Raises the `failure` that ends the wait."""
        if self.failure is not None:
            raise self.failure
        waiting = _Waiting(asyncio.get_running_loop().create_future())
        queue = self._waiting_alone if alone else self._waiting
        queue.append(waiting)
        self.hand_out()
        try:
            return await waiting.future
        except asyncio.CancelledError:
            if waiting in queue:
                queue.remove(waiting)
                if waiting.reserved is not None:
                    waiting.reserved.alone = False
            elif not waiting.future.cancelled() and waiting.future.exception() is None:
                self.give_back(waiting.future.result(), alone=alone)
            self.hand_out()
            raise

    def give_back(self, worker: ReadyWorker, *, alone: bool) -> None:
        """An episode on it has ended."""
        worker.in_flight -= 1
        if alone:
            worker.alone = False
        self.hand_out()

    def add(self, worker: ReadyWorker) -> None:
        """One more worker is ready."""
        self.workers.append(worker)
        self.hand_out()

    def remove(self, worker: ReadyWorker) -> bool:
        """The worker is lost. False if that was known."""
        if worker.lost.is_set():
            return False
        worker.lost.set()
        self.workers.remove(worker)
        self.hand_out()
        return True

    def fail(self, error: Exception) -> None:
        """Every request for a worker gets this error, also later ones. The first failure counts."""
        if self.failure is not None:
            return
        self.failure = error
        for waiting in (*self._waiting, *self._waiting_alone):
            if not waiting.future.done():
                waiting.future.set_exception(error)
        self._waiting.clear()
        self._waiting_alone.clear()

    def hand_out(self) -> None:
        """Gives workers to the requests that wait, as far as there are any."""
        for waiting in list(self._waiting_alone):
            if waiting.reserved is None or waiting.reserved.lost.is_set():
                waiting.reserved = self._reserve()
            if waiting.reserved is not None and not waiting.reserved.in_flight:
                self._waiting_alone.remove(waiting)
                _assign(waiting, waiting.reserved)
        while self._waiting and (worker := self._quickest()) is not None:
            _assign(self._waiting.popleft(), worker)

    def _reserve(self) -> ReadyWorker | None:
        """The worker with the fewest episodes; half of the workers stay for other attempts."""
        free = [worker for worker in self.workers if not worker.alone]
        if len(free) <= len(self.workers) // 2:
            return None
        chosen = min(free, key=lambda worker: worker.in_flight)
        chosen.alone = True
        return chosen

    def _quickest(self) -> ReadyWorker | None:
        """The worker that would finish one more episode first; a slow one is given fewer."""
        free = [worker for worker in self.workers if not worker.alone and worker.in_flight < self.most]
        known = [worker.seconds for worker in self.workers if worker.seconds is not None]
        usual = fmean(known) if known else 1.0

        def finish(worker: ReadyWorker) -> float:
            return (usual if worker.seconds is None else worker.seconds) * (worker.in_flight + 1)

        return min(free, key=finish, default=None)


def _assign(waiting: _Waiting, worker: ReadyWorker) -> None:
    if waiting.future.done():  # cancelled just now
        if waiting.reserved is not None:
            worker.alone = False
        return
    worker.in_flight += 1
    waiting.future.set_result(worker)
