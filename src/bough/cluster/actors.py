"""Objects that live in worker processes on the nodes of a cluster and are called from here.

A worker that is lost is replaced by a new object when the cluster has room. What the lost one knew is
gone: the caller gives its work to the workers that are left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from bough.cluster.connection import StartsFailedError, import_ray
from bough.cluster.plan import Plan
from bough.cluster.remote_worker import WorkerLostError
from bough.cluster.tasks import Notify, WithoutRoom
from bough.errors import BoughError

POLL_S = 0.5
# A new worker has this long to start before work begins without it, if others are there.
START_S = 60.0
# Starts that may fail in a row, besides one for each worker.
MAX_FAILED_STARTS = 5


class _Host:
    """What runs in the worker's process. The object is made at the first call, so that a worker starts quickly."""

    def __init__(self, make: Callable[..., Any], *given: Any) -> None:
        self._make, self._given, self._made = make, given, None
        self._lock = threading.Lock()

    def ready(self) -> bool:
        return True

    def call(self, method: str, *given: Any) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._make(*self._given)
        return getattr(self._made, method)(*given)


class Actor:
    """An object in a worker process. `number` is its own; a replacement has another one."""

    def __init__(self, number: int, host: Any) -> None:
        self.number, self.host, self.placed, self.lost = number, host, False, False
        self.since = time.monotonic()
        self.ready = host.ready.remote()

    def start(self, method: str, *given: Any) -> Any:
        """Calls a method; the result is for `Actors.gather` or `Actors.result`."""
        return self.host.call.remote(method, *given)


class Actors:
    """As many workers as the plan says, each with an object that `make` returns for `given`.

    A worker answers up to `threads` calls at the same time. `room` says how many workers the cluster has
    resources for now. `losses` counts those that died.
    """

    def __init__(
        self,
        plan: Plan,
        make: Callable[..., Any],
        *given: Any,
        threads: int,
        room: Callable[[], int],
        timeout_s: float,
        notify: Notify,
    ) -> None:
        self.plan, self.make, self.threads, self.room, self.notify = plan, make, threads, room, notify
        self.losses = 0
        self._ray = import_ray()
        self._given = [self._ray.put(one) for one in given]
        self._without_room = WithoutRoom(timeout_s, notify)
        self._workers: list[Actor] = []
        self._started = self._failed_starts = 0

    def living(self) -> list[Actor]:
        """The workers that have started, at least one. Waits for new ones, but not for long where others are there."""
        while True:
            self._workers = [worker for worker in self._workers if not worker.lost]
            self._workers += [self._new() for _ in range(self.plan.workers - len(self._workers))]
            waiting = {worker.ready: worker for worker in self._workers if not worker.placed}
            if waiting:
                for ready in self._ray.wait(list(waiting), num_returns=len(waiting), timeout=POLL_S)[0]:
                    self._note_start(waiting[ready], ready)
            placed = [worker for worker in self._workers if worker.placed]
            young = any(not w.placed and time.monotonic() - w.since < START_S for w in self._workers)
            patient = young and len(placed) < self.room()
            if placed and not patient:
                return placed
            self._without_room.check(bool(placed) or patient)

    def gather(self, started: Mapping[Actor, Any], each: Callable[[], None] = lambda: None) -> dict[Actor, Any]:
        """The results of calls by their workers; those of lost workers are missing. `each` is called while waiting.

        An error that an object raised is raised here.
        """
        found, waiting = {}, dict(started)
        while waiting:
            done, _ = self._ray.wait(list(waiting.values()), num_returns=len(waiting), timeout=POLL_S)
            for worker in [worker for worker, one in waiting.items() if one in done]:
                with suppress(WorkerLostError):
                    found[worker] = self._value(worker, waiting.pop(worker))
            each()
        return found

    async def result(self, worker: Actor, started: Any) -> Any:
        """The result of one call. WorkerLostError where its worker died."""
        try:
            return await started
        except self._ray.exceptions.RayError as error:
            raise self._translated(worker, error) from error

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers:
            self._ray.kill(worker.host)
        self._workers = []

    def _new(self) -> Actor:
        remote = self._ray.remote(_Host).options(
            num_cpus=self.plan.cpus_per_worker,
            num_gpus=self.plan.gpus_per_worker,
            max_restarts=0,
            max_concurrency=self.threads,
            scheduling_strategy="SPREAD",
        )
        self._started += 1
        return Actor(self._started, remote.remote(self.make, *self._given))

    def _note_start(self, worker: Actor, ready: Any) -> None:
        try:
            worker.placed = bool(self._value(worker, ready))
            self._failed_starts = 0
        except WorkerLostError as error:
            self._failed_starts += 1
            count = self._failed_starts
            if count >= MAX_FAILED_STARTS + self.plan.workers:
                raise StartsFailedError(count, error) from error

    def _value(self, worker: Actor, started: Any) -> Any:
        try:
            return self._ray.get(started)
        except self._ray.exceptions.RayError as error:
            raise self._translated(worker, error) from error

    def _translated(self, worker: Actor, error: Any) -> Exception:
        """The error of an object as it was raised there; any other means that the worker is lost."""
        if isinstance(error, self._ray.exceptions.RayTaskError):
            return error.cause if isinstance(error.cause, Exception) else BoughError(str(error))
        text = f"worker {worker.number} of the cluster was lost ({type(error).__name__.removesuffix('Error')})"
        if not worker.lost:
            worker.lost = True
            self.losses += 1
            self._ray.kill(worker.host)  # it may still be alive where only the connection broke
            self.notify(f"{text}; its work is done again" if worker.placed else f"{text} while it started")
        return WorkerLostError(text)
