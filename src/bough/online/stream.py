"""Episodes that are always in flight: as one ends, the next begins.

They are played on an event loop in a thread of its own, so they continue while the caller
trains. A finished episode is on disk before the caller hears of it.

An episode whose environment or engine failed in every retry is tried again when nothing
else is in flight, alone and just as often, as in `bough collect`; then it is lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue

from bough.errors import RowError
from bough.event_loop import BackgroundLoop
from bough.rollouts.attempt import Attempt
from bough.rollouts.collect import Tally, play_attempt
from bough.rollouts.garbage import spare_what_is_loaded
from bough.rollouts.runner import Runner
from bough.training.interrupts import StopRequestedError
from bough.types import Trajectory


@dataclass(frozen=True)
class Job:
    """An attempt at the task with this number."""

    number: int
    attempt: Attempt


@dataclass(frozen=True)
class Result:
    """A finished episode, or why there is none."""

    job: Job
    episode: Trajectory | None
    error: str | None = None


class EpisodeStream:
    """Plays jobs in the order in which they are submitted, `concurrency` at a time.

    `runner` plays them; `keep` writes a finished episode to the disk, with the range of versions of
    the policy that sampled it; `watch` hears how many episodes are in flight.
    """

    def __init__(
        self,
        runner: Runner,
        loop: BackgroundLoop,
        *,
        concurrency: int,
        retries: int,
        keep: Callable[[int, Trajectory, range], None],
        watch: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.runner, self.concurrency, self.retries, self.version = runner, concurrency, retries, 0
        self._loop, self._keep, self._watch = loop, keep, watch
        self._results: SimpleQueue[Result | BaseException] = SimpleQueue()
        self._waiting: deque[Job] = deque()
        self._put_off: deque[Job] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._writing: set[asyncio.Task[None]] = set()
        self._disk = ThreadPoolExecutor(1, "bough-episodes")  # one at a time: the attempts at a task share a file

    def submit(self, jobs: Iterable[Job]) -> None:
        spare_what_is_loaded()
        self._loop.loop.call_soon_threadsafe(self._add, list(jobs))

    def results(self) -> Iterator[Result]:
        """Waits for the next episode to end; then all that have ended.

        Raises the first error that is neither the environment's nor the engine's.
        """
        yield self._result()
        while not self._results.empty():
            yield self._result()

    def _result(self) -> Result:
        result = self._results.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def interrupt(self) -> None:
        """Raises StopRequestedError in the thread that waits for results, or that will."""
        self._results.put(StopRequestedError())

    def clear(self) -> int:
        """Cancels all jobs and forgets the results that were not asked for; returns how many episodes had begun."""
        begun = self.cancel()
        while not self._results.empty():
            self._result()
            begun += 1
        return begun

    def cancel(self) -> int:
        """Cancels all jobs; finished episodes are on disk. Returns how many were not finished."""
        return self._loop.run(self._cancel())

    def close(self) -> None:
        """Cancels what is in flight."""
        self.cancel()
        self._disk.shutdown()

    def _add(self, jobs: list[Job]) -> None:
        self._waiting.extend(jobs)
        self._fill()

    def _fill(self) -> None:
        while len(self._running) < self.concurrency and self._waiting:
            self._start(self._waiting.popleft(), alone=False)
        if not self._running and self._put_off:
            self._start(self._put_off.popleft(), alone=True)
        self._watch(len(self._running))

    def _start(self, job: Job, *, alone: bool) -> None:
        task = self._loop.loop.create_task(self._play(job, alone))
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._results.put(error)
        self._fill()

    async def _play(self, job: Job, alone: bool) -> None:
        began, tally = self.version, Tally()
        first = self.retries + 1 if alone else 0
        tries = range(first, first + self.retries + 1)
        # A task may be in flight twice: its number is part of the name.
        name = f"{job.number}/{job.attempt.id}"
        played = await play_attempt(self.runner, job.attempt, tries, tally, episode=name)
        if played is None:
            if self.retries and not alone:
                self._put_off.append(job)
            else:
                self._results.put(Result(job, None, tally.lost[job.attempt.id]))
            return
        # The slot is free for the next episode while this one is written.
        task = self._loop.loop.create_task(self._write(job, played[0], range(began, self.version + 1)))
        self._writing.add(task)
        task.add_done_callback(self._written)

    async def _write(self, job: Job, episode: Trajectory, versions: range) -> None:
        try:
            await self._loop.loop.run_in_executor(self._disk, self._keep, job.number, episode, versions)
        except RowError as error:  # a retry would not help
            self._results.put(Result(job, None, str(error)))
        else:
            self._results.put(Result(job, episode))

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._results.put(error)

    async def _cancel(self) -> int:
        """Returns how many episodes were ended by it."""
        self._waiting.clear()
        self._put_off.clear()
        running = list(self._running)
        for task in running:
            task.cancel()
        ended = await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*self._writing, return_exceptions=True)
        self._watch(0)
        return sum(isinstance(one, asyncio.CancelledError) for one in ended)  # others may just have a result
