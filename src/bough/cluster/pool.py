"""The workers of a run: started, replaced when they are lost, and given up when there has been none for too long.

A node on which a worker says that it cannot work is left out, with the reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from bough.cluster.connection import ClusterLostError, StartsFailedError, nodes_by_id
from bough.cluster.dispatch import Dispatcher, ReadyWorker
from bough.cluster.plan import Plan
from bough.cluster.remote_worker import Place, RemoteWorker, Startable, WorkerLostError, launcher
from bough.errors import BoughError, InputError
from bough.plural import plural

# Starts that may fail in a row, besides one for each worker.
MAX_FAILED_STARTS = 5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
FIRST_NOTE_S, NOTE_S = 5.0, 30.0
CLOSE_S = 10.0
POLL_S = 0.1
# A worker has this long to get a process before work begins without it, where others are ready.
START_S = 60.0


class Loading:
    """Says now and then that workers are loading while none is ready: a large model takes minutes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._since, self._note_s = time.monotonic(), FIRST_NOTE_S

    def note(self, count: int) -> None:
        """`count` workers are loading and none is ready; 0 if there is nothing to wait for."""
        if not count:
            self._since, self._note_s = time.monotonic(), FIRST_NOTE_S
            return
        waited_s = time.monotonic() - self._since
        if waited_s >= self._note_s:
            self._say(f"{plural(count, 'worker is', 'workers are')} loading; none is ready after {waited_s:.0f} s")
            self._note_s = waited_s + NOTE_S


class WorkerPool:
    """As many workers as the plan says, as far as the cluster has room for them.

    `launch` starts a worker anywhere but on the given nodes, `room` says how many each node has the resources for.
    """

    def __init__(
        self,
        launch: Callable[[frozenset[str]], RemoteWorker],
        plan: Plan,
        *,
        timeout_s: float,
        room: Callable[[], Mapping[str, int]],
        say: Callable[[str], None],
    ) -> None:
        self._launch, self._plan, self._timeout_s, self._room, self._say = launch, plan, timeout_s, room, say
        self.dispatcher = Dispatcher(2 * plan.concurrency)
        self.losses = 0
        self._left_out: dict[str, str] = {}  # reasons by node
        self._weights: tuple[str, Any] | None = None
        self._launched: dict[RemoteWorker, float] = {}  # when, of those without a process yet
        self._num_loading = self._num_started = 0
        self._failed_starts = 0
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    def on_ray(
        cls,
        made: type[Startable],
        given: Sequence[Any],
        plan: Plan,
        *,
        max_calls: int,
        timeout_s: float,
        say: Callable[[str], None],
    ) -> WorkerPool:
        """Workers that hold `made(*given)`, on the cluster that this process is connected to."""

        def room() -> dict[str, int]:
            return {node: plan.room_on(resources) for node, resources in nodes_by_id().items()}

        return cls(launcher(made, given, plan, max_calls), plan, timeout_s=timeout_s, room=room, say=say)

    def start(self) -> None:
        """Begins to start the workers."""
        tending = [self._tend() for _ in range(self._plan.workers)]
        self._tasks = [asyncio.create_task(work) for work in (*tending, self._watch())]

    async def close(self) -> None:
        """Ends all workers; those that are ready may release what they hold."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                closing = [worker.remote.call("close") for worker in self.dispatcher.workers]
                await asyncio.gather(*closing, return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def renew(self, name: str, weights: Any) -> None:
        """All workers use these weights from now on, those that start later too."""
        self._weights = (name, weights)
        await asyncio.gather(*(self._renew(worker) for worker in list(self.dispatcher.workers)))

    async def settled(self) -> list[ReadyWorker]:
        """The workers that are ready, at least one, as soon as no more are expected."""
        while True:
            if self.dispatcher.failure is not None:
                raise self.dispatcher.failure
            if self.dispatcher.workers and not self._expects_more():
                return list(self.dispatcher.workers)
            await asyncio.sleep(POLL_S)

    def lose(self, worker: ReadyWorker, error: WorkerLostError) -> None:
        """Counts a worker as lost, once, however many calls were in flight on it."""
        if self.dispatcher.remove(worker):
            self.losses += 1
            self._say(f"a worker on {worker.place.host} was lost; its work is done elsewhere ({error})")

    async def _renew(self, worker: ReadyWorker) -> None:
        assert self._weights is not None
        try:
            await worker.remote.call("renew", *self._weights)
        except WorkerLostError as error:
            self.lose(worker, error)
        except Exception as error:  # as in `_tend`; the sender does not wait for the answer
            self.dispatcher.fail(error)
            raise

    async def _tend(self) -> None:
        """Keeps one worker going. An error of its code, not of its machine, would come again: it ends the run."""
        try:
            await self._replace()
        except Exception as error:
            self.dispatcher.fail(error)

    async def _replace(self) -> None:
        """Starts a worker, and another one whenever it is lost."""
        pause_s = FIRST_PAUSE_S
        while self.dispatcher.failure is None:
            remote = self._launch(frozenset(self._left_out))
            self._launched[remote] = time.monotonic()
            try:
                worker = await self._begin(remote)
                if worker is not None:
                    pause_s, self._failed_starts = FIRST_PAUSE_S, 0
                    await worker.lost.wait()
                    continue
            except WorkerLostError as error:
                self._note_failed_start(error)
            finally:
                self._launched.pop(remote, None)
                remote.kill()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _begin(self, remote: RemoteWorker) -> ReadyWorker | None:
        """Starts a worker. None if it cannot work where it is."""
        place = await remote.place()
        del self._launched[remote]
        self._num_loading += 1
        try:
            refusal = await remote.start()
            if refusal is not None:
                self._leave_out(place, refusal)
                return None
            sent = None
            while sent is not self._weights:  # there may be newer ones by the time it has these
                sent = self._weights
                assert sent is not None
                await remote.call("renew", *sent)
        finally:
            self._num_loading -= 1
        self._num_started += 1
        worker = ReadyWorker(remote, place, self._num_started)
        self.dispatcher.add(worker)
        return worker

    def _leave_out(self, place: Place, why: str) -> None:
        if place.node not in self._left_out:
            self._left_out[place.node] = why
            self._say(f"{place.host} is left out: {why}")

    def _note_failed_start(self, error: WorkerLostError) -> None:
        self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS + self._plan.workers and not self.dispatcher.workers:
            self.dispatcher.fail(StartsFailedError(self._failed_starts, error))

    def _expects_more(self) -> bool:
        """Whether more workers may be ready soon."""
        if self._num_loading:
            return True
        room = sum(count for node, count in self._room().items() if node not in self._left_out)
        young = any(time.monotonic() - since < START_S for since in self._launched.values())
        return young and len(self.dispatcher.workers) < room

    async def _watch(self) -> None:
        """Ends the wait for a cluster that has shrunk to nothing, or on which no node can be used."""
        empty_since, note_s = time.monotonic(), FIRST_NOTE_S
        loading = Loading(self._say)
        while self.dispatcher.failure is None:
            await asyncio.sleep(min(1.0, self._timeout_s / 4))
            loading.note(0 if self.dispatcher.workers else self._num_loading)
            if self.dispatcher.workers or self._num_loading:
                empty_since, note_s = time.monotonic(), FIRST_NOTE_S
                continue
            waited_s = time.monotonic() - empty_since
            if error := self._hopeless(waited_s):
                self.dispatcher.fail(error)
            elif waited_s >= note_s:
                self._say(f"the cluster has no worker; waiting for {self._timeout_s - waited_s:.0f} s more")
                note_s = waited_s + NOTE_S

    def _hopeless(self, waited_s: float) -> BoughError | None:
        """Why more waiting would not help."""
        if self._left_out and not any(count for node, count in self._room().items() if node not in self._left_out):
            return InputError(f"no node of the cluster can be used: {next(iter(self._left_out.values()))}")
        if waited_s < self._timeout_s:
            return None
        return ClusterLostError(
            f"the cluster has had no worker for {waited_s:.0f} s (--cluster-timeout); finished work is saved, "
            "and the same command resumes"
        )
