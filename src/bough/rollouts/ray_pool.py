"""The workers of a run: started, replaced when they are lost, and given up when there has been none for too long.

A lost worker is only work to be done again by another one. A node on which a worker says that it cannot work is left
out, with the reason.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bough.errors import BoughError, InputError, exception_text
from bough.event_loop import BackgroundLoop
from bough.ledger import plural
from bough.rollouts.ray import ClusterLostError, Plan, import_ray, nodes_by_id

# Starts that may fail in a row, besides one for each worker.
MAX_FAILED_STARTS = 5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
FIRST_NOTE_S, NOTE_S = 5.0, 30.0
CLOSE_S = 10.0
POLL_S = 0.1
# A worker has this long to get a process before work begins without it, where others are ready.
START_S = 60.0
MAX_REASON = 200


class WorkerLostError(BoughError):
    """A worker, its node or the connection to it was lost. Its work may be done again elsewhere."""


class Place(NamedTuple):
    """Where a worker runs."""

    node: str
    host: str
    pid: int


@dataclass(eq=False)
class ReadyWorker:
    """A worker that is ready. `number` is its own; the worker that replaces it has another one."""

    remote: RayWorker
    place: Place
    number: int = 0
    in_flight: int = 0
    lost: asyncio.Event = field(default_factory=asyncio.Event)


class WorkerPool:
    """As many workers as the plan says, as far as the cluster has room for them; `failure` is what ended it.

    `launch` starts a worker anywhere but on the given nodes, `room` says how many each node has the resources for.
    A worker does up to `most` things at the same time.
    """

    def __init__(
        self,
        launch: Callable[[frozenset[str]], RayWorker],
        plan: Plan,
        *,
        most: int,
        timeout_s: float,
        room: Callable[[], Mapping[str, int]],
        say: Callable[[str], None],
    ) -> None:
        self._launch, self._plan, self._timeout_s, self._room, self._say = launch, plan, timeout_s, room, say
        self.most, self.losses = most, 0
        self.workers: list[ReadyWorker] = []
        self.failure: Exception | None = None
        self._changed = asyncio.Event()
        self._left_out: dict[str, str] = {}  # reasons by node
        self._weights: tuple[str, Any] | None = None
        self._launched: dict[RayWorker, float] = {}  # when, of those without a process yet
        self._num_loading = self._num_started = self._failed_starts = 0
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    def on_ray(
        cls,
        made: type[Any],
        given: Sequence[Any],
        plan: Plan,
        *,
        most: int,
        spare_calls: int,
        timeout_s: float,
        say: Callable[[str], None],
    ) -> WorkerPool:
        """Workers that hold `made(*given)`, on the cluster that this process is connected to.

        They answer `spare_calls` more at the same time than the `most` that they are handed out for. `start` gets the
        object ready and returns why it cannot work on this node, None if it can; `close` releases what it holds.
        """

        def room() -> dict[str, int]:
            return {node: plan.room_on(resources) for node, resources in nodes_by_id().items()}

        launch = launcher(made, given, plan, most + spare_calls)
        return cls(launch, plan, most=most, timeout_s=timeout_s, room=room, say=say)

    def start(self) -> None:
        """Begins to start the workers."""
        tending = [self._tend() for _ in range(self._plan.workers)]
        self._tasks = [asyncio.create_task(work) for work in (*tending, self._watch())]

    async def close(self) -> None:
        """Ends all workers; those that are ready may release what they hold."""
        self.fail(BoughError("the workers of the cluster are closed"))
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                closing = [worker.remote.call("close") for worker in self.workers]
                await asyncio.gather(*closing, return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def take(self) -> ReadyWorker:
        """Waits for a worker that has room, the least busy one. Raises the `failure` that ends the wait."""
        while self.failure is None:
            free = [worker for worker in self.workers if worker.in_flight < self.most]
            if free:
                worker = min(free, key=lambda one: one.in_flight)
                worker.in_flight += 1
                return worker
            await self._changed.wait()
        raise self.failure

    def give_back(self, worker: ReadyWorker) -> None:
        """What the worker was taken for has ended."""
        worker.in_flight -= 1
        self._notify()

    def lose(self, worker: ReadyWorker, error: WorkerLostError) -> None:
        """Counts a worker as lost, once, however many calls were in flight on it."""
        if not worker.lost.is_set():
            worker.lost.set()
            self.workers.remove(worker)
            self.losses += 1
            self._say(f"a worker on {worker.place.host} was lost; its work is done elsewhere ({error})")

    async def call(self, worker: ReadyWorker, method: str, *given: Any) -> Any:
        """The result of a method of the worker's object. Raises what that raises, or WorkerLostError."""
        try:
            return await worker.remote.call(method, *given)
        except WorkerLostError as error:
            self.lose(worker, error)
            raise

    async def do(self, method: str, *given: Any) -> Any:
        """The same, on any worker."""
        worker = await self.take()
        try:
            return await self.call(worker, method, *given)
        finally:
            self.give_back(worker)

    def fail(self, error: Exception) -> None:
        """Every request for a worker gets this error, also later ones. The first failure counts."""
        self.failure = self.failure or error
        self._notify()

    async def renew(self, name: str, weights: Any) -> None:
        """All workers use these weights from now on, those that start later too."""
        self._weights = (name, weights)
        await asyncio.gather(*(self._renew(worker, name, weights) for worker in list(self.workers)))

    async def settled(self) -> list[ReadyWorker]:
        """The workers that are ready, at least one, as soon as no more are expected."""
        while self.failure is None:
            room = sum(count for node, count in self._room().items() if node not in self._left_out)
            young = any(time.monotonic() - since < START_S for since in self._launched.values())
            expected = self._num_loading or (young and len(self.workers) < room)
            if self.workers and not expected:
                return list(self.workers)
            await asyncio.sleep(POLL_S)
        raise self.failure

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _renew(self, worker: ReadyWorker, name: str, weights: Any) -> None:
        try:
            await self.call(worker, "renew", name, weights)
        except WorkerLostError:
            pass
        except Exception as error:  # as in `_tend`; the sender does not wait for the answer
            self.fail(error)
            raise

    async def _tend(self) -> None:
        """Keeps one worker going. An error of its code, not of its machine, would come again: it ends the run."""
        try:
            await self._replace()
        except Exception as error:
            self.fail(error)

    async def _replace(self) -> None:
        """Starts a worker, and another one whenever it is lost."""
        pause_s = FIRST_PAUSE_S
        while self.failure is None:
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
                if self._failed_starts >= MAX_FAILED_STARTS + self._plan.workers and not self.workers:
                    raise ClusterLostError(
                        f"workers die while they start, {self._failed_starts} in a row: {error}. Often it is too "
                        "little memory: lower --workers. Ray's logs say more, in /tmp/ray/session_latest/logs on the "
                        "node"
                    ) from error
            finally:
                self._launched.pop(remote, None)
                remote.kill()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _begin(self, remote: RayWorker) -> ReadyWorker | None:
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
        self.workers.append(worker)
        self._notify()
        return worker

    async def _watch(self) -> None:
        """Ends the wait for a cluster that has shrunk to nothing, or on which no node can be used."""
        state, since, note_s = "", time.monotonic(), FIRST_NOTE_S
        while self.failure is None:
            await asyncio.sleep(min(1.0, self._timeout_s / 4))
            before, state = state, "ready" if self.workers else "loading" if self._num_loading else "empty"
            if state != before:
                since, note_s = time.monotonic(), FIRST_NOTE_S
            waited_s = time.monotonic() - since
            usable = any(count for node, count in self._room().items() if node not in self._left_out)
            if state == "empty" and self._left_out and not usable:
                self.fail(InputError(f"no node of the cluster can be used: {next(iter(self._left_out.values()))}"))
            elif state == "empty" and waited_s >= self._timeout_s:
                self.fail(
                    ClusterLostError(
                        f"the cluster has had no worker for {waited_s:.0f} s (--cluster-timeout); finished work is "
                        "saved, and the same command resumes"
                    )
                )
            elif state != "ready" and waited_s >= note_s:
                note_s = waited_s + NOTE_S
                count = plural(self._num_loading, "worker is", "workers are")
                self._say(
                    f"the cluster has no worker; waiting for {self._timeout_s - waited_s:.0f} s more"
                    if state == "empty"
                    else f"{count} loading; none is ready after {waited_s:.0f} s"  # a large model takes minutes
                )


class _Located:
    """Part of every actor."""

    def place(self) -> Place:
        import ray

        return Place(ray.get_runtime_context().get_node_id(), socket.gethostname(), os.getpid())


class RayWorker:
    """An actor of Ray. It is not restarted and its calls are not repeated: its user does both."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def call(self, method: str, *given: Any) -> Any:
        """The answer. All errors of Ray mean that the worker is lost, except those that its own code has raised."""
        ray, reference = import_ray(), None
        errors = ray.exceptions
        try:
            reference = getattr(self._actor, method).remote(*given)
            return await reference
        except asyncio.CancelledError:
            with suppress(errors.RayError, ConnectionError):
                ray.cancel(reference)
            raise
        except errors.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else BoughError(str(error)) from error
        except (errors.RayError, ConnectionError) as error:
            first = next((line.strip() for line in exception_text(error).splitlines() if line.strip()), "")
            raise WorkerLostError(f"{type(error).__name__}: {first}"[:MAX_REASON]) from error

    def kill(self) -> None:
        """Ends the process without waiting; also one that is only out of reach."""
        ray = import_ray()
        with suppress(ray.exceptions.RayError, ConnectionError, ValueError):
            ray.kill(self._actor, no_restart=True)


def launcher(
    made: type[Any], given: Sequence[Any], plan: Plan, max_calls: int
) -> Callable[[frozenset[str]], RayWorker]:
    """Starts workers that hold `made(*given)`, on any node but those whose ids it is given."""
    ray = import_ray()
    remote = ray.remote(type(made.__name__, (_Located, made), {})).options
    stored = [ray.put(one) for one in given]  # once for all workers: a whole module or data set may be in it

    def launch(left_out: frozenset[str]) -> RayWorker:
        from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

        strategy: Any = "SPREAD"
        if left_out:
            strategy = NodeLabelSchedulingStrategy(hard={"ray.io/node-id": NotIn(*sorted(left_out))})  # type: ignore[no-untyped-call]
        actor = remote(
            num_cpus=plan.cpus_per_worker,
            num_gpus=plan.gpus_per_worker,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=max_calls,
            scheduling_strategy=strategy,
        )
        return RayWorker(actor.remote(*stored))

    return launch


# A pool of workers for a driver without an event loop: it starts calls and gathers their results.
# A worker that is lost is replaced when the cluster has room. The new one has nothing of what the lost one had in
# memory: the caller gives its work to the workers that are left.


class Actors:
    """The workers of a pool, which gets an event loop in a thread of its own."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool, self._loop = pool, BackgroundLoop("bough-cluster")
        self._loop.loop.call_soon_threadsafe(pool.start)

    @property
    def losses(self) -> int:
        """Workers that were lost while they were ready."""
        return self._pool.losses

    def living(self) -> list[ReadyWorker]:
        """The workers that are ready, at least one. Waits for new ones, but not for long where others are ready."""
        return self._loop.run(self._pool.settled())

    def start(self, worker: ReadyWorker, method: str, *given: Any) -> Future[Any]:
        """Calls a method; the result is for `gather` or `result`."""
        return asyncio.run_coroutine_threadsafe(self._pool.call(worker, method, *given), self._loop.loop)

    def do(self, method: str, *given: Any) -> Any:
        """The result of a method on any worker. WorkerLostError where that died."""
        return self._loop.run(self._pool.do(method, *given))

    def gather(self, started: Mapping[ReadyWorker, Future[Any]]) -> dict[ReadyWorker, Any]:
        """The results of calls by their workers; those of lost workers are missing.

        An error that an object raised is raised here.
        """
        found = {}
        for worker, one in started.items():
            with suppress(WorkerLostError):
                found[worker] = one.result()
        return found

    async def result(self, started: Future[Any]) -> Any:
        """The result of one call. WorkerLostError where its worker died."""
        return await asyncio.wrap_future(started)

    def close(self) -> None:
        """Ends all workers."""
        if not self._loop.loop.is_closed():
            self._loop.run(self._pool.close())
            self._loop.close()
