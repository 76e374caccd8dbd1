"""The workers of a run: started, replaced when they are lost, and given up when there has been none for too long.

A node on which a worker says that it cannot work is left out, with the reason.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple, Protocol

from bough.errors import BoughError, InputError, exception_text
from bough.event_loop import BackgroundLoop
from bough.ledger import plural
from bough.rollouts.ray import ClusterLostError, Plan, StartsFailedError, import_ray, nodes_by_id

# Starts that may fail in a row, besides one for each worker.
MAX_FAILED_STARTS = 5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
FIRST_NOTE_S, NOTE_S = 5.0, 30.0
CLOSE_S = 10.0
POLL_S = 0.1
# A worker has this long to get a process before work begins without it, where others are ready.
START_S = 60.0


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
        made: type[Any],
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
                self._failed_starts += 1
                if self._failed_starts >= MAX_FAILED_STARTS + self._plan.workers and not self.dispatcher.workers:
                    self.dispatcher.fail(StartsFailedError(self._failed_starts, error))
            finally:
                self._launched.pop(remote, None)
                remote.kill()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _begin(self, remote: RemoteWorker) -> ReadyWorker | None:
        """Starts a worker. None if it cannot work where it is."""
        place: Place = await remote.call("place")
        del self._launched[remote]
        self._num_loading += 1
        try:
            refusal: str | None = await remote.call("start")
            if refusal is not None:
                if place.node not in self._left_out:
                    self._left_out[place.node] = refusal
                    self._say(f"{place.host} is left out: {refusal}")
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

    def _expects_more(self) -> bool:
        """Whether more workers may be ready soon."""
        if self._num_loading:
            return True
        room = sum(count for node, count in self._room().items() if node not in self._left_out)
        young = any(time.monotonic() - since < START_S for since in self._launched.values())
        return young and len(self.dispatcher.workers) < room

    async def _watch(self) -> None:
        """Ends the wait for a cluster that has shrunk to nothing, or on which no node can be used."""
        state, since, note_s = "", time.monotonic(), FIRST_NOTE_S
        while self.dispatcher.failure is None:
            await asyncio.sleep(min(1.0, self._timeout_s / 4))
            before, state = state, "ready" if self.dispatcher.workers else "loading" if self._num_loading else "empty"
            if state != before:
                since, note_s = time.monotonic(), FIRST_NOTE_S
            waited_s = time.monotonic() - since
            if state == "empty" and (error := self._hopeless(waited_s)):
                self.dispatcher.fail(error)
            elif state != "ready" and waited_s >= note_s:
                note_s = waited_s + NOTE_S
                count = plural(self._num_loading, "worker is", "workers are")
                self._say(
                    f"the cluster has no worker; waiting for {self._timeout_s - waited_s:.0f} s more"
                    if state == "empty"
                    else f"{count} loading; none is ready after {waited_s:.0f} s"  # a large model takes minutes
                )

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


# Which worker plays an attempt: the one that would finish it first, or one that plays nothing else.

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


# A worker as the driver sees it: an actor of Ray, whatever may happen to it.

MAX_REASON = 200


class WorkerLostError(BoughError):
    """A worker, its node or the connection to it was lost. Its work may be done again elsewhere."""


class Place(NamedTuple):
    """Where a worker runs."""

    node: str
    host: str
    pid: int


class RemoteWorker(Protocol):
    """An object in another process."""

    async def call(self, method: str, *given: Any) -> Any:
        """The result of a method of the object. Raises what the method raises, or WorkerLostError.

        `place` waits until the process runs, which may take until the cluster has room. `start` gets the object
        ready and returns why it cannot work on this node, None if it can; `close` releases what it holds.
        """

    def kill(self) -> None:
        """Ends the process without waiting; also one that is only out of reach."""


class _Located:
    """Part of every actor."""

    def place(self) -> Place:
        import ray

        return Place(ray.get_runtime_context().get_node_id(), socket.gethostname(), os.getpid())


class RayWorker:
    """A worker that is an actor of Ray. It is not restarted and its calls are not repeated: its user does both."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def call(self, method: str, *given: Any) -> Any:
        return await _answer(getattr(self._actor, method).remote, *given)

    def kill(self) -> None:
        ray = import_ray()
        with suppress(ray.exceptions.RayError, ConnectionError, ValueError):
            ray.kill(self._actor, no_restart=True)


def launcher(
    made: type[Any], given: Sequence[Any], plan: Plan, max_calls: int
) -> Callable[[frozenset[str]], RayWorker]:
    """Starts workers that hold `made(*given)`, on any node but those whose ids it is given.

    A worker answers up to `max_calls` calls at the same time.
    """
    ray = import_ray()
    remote = ray.remote(type(made.__name__, (_Located, made), {}))
    options: dict[str, Any] = {
        "num_cpus": plan.cpus_per_worker,
        "num_gpus": plan.gpus_per_worker,
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": max_calls,
    }
    stored = [ray.put(one) for one in given]  # once for all workers: a whole module or data set may be in it

    def launch(left_out: frozenset[str]) -> RayWorker:
        actor = remote.options(**options, scheduling_strategy=_anywhere_but(left_out))
        return RayWorker(actor.remote(*stored))

    return launch


def _anywhere_but(nodes: frozenset[str]) -> Any:
    if not nodes:
        return "SPREAD"
    from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

    return NodeLabelSchedulingStrategy(hard={"ray.io/node-id": NotIn(*sorted(nodes))})  # type: ignore[no-untyped-call]


async def _answer(call: Callable[..., Any], *given: Any) -> Any:
    """What an actor answers. All errors of Ray mean that it is lost, except those that its own code has raised."""
    errors, reference = import_ray().exceptions, None
    try:
        reference = call(*given)
        return await reference
    except asyncio.CancelledError:
        with suppress(errors.RayError, ConnectionError):
            import_ray().cancel(reference)
        raise
    except errors.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else BoughError(str(error)) from error
    except (errors.RayError, ConnectionError) as error:
        first = next((line.strip() for line in exception_text(error).splitlines() if line.strip()), "")
        raise WorkerLostError(f"{type(error).__name__}: {first}"[:MAX_REASON]) from error


# A pool of workers for a driver without an event loop: it starts calls and gathers their results.
# A worker that is lost is replaced when the cluster has room. The new one has nothing of what the lost one had in
# memory: the caller gives its work to the workers that are left.

ACTOR_POLL_S = 0.5


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
            done, _ = wait(waiting.values(), timeout=ACTOR_POLL_S)
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
