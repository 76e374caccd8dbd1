"""The player of online training: numbered tasks and held-out episodes, with the newest weights."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from queue import SimpleQueue
from statistics import fmean
from typing import Any, TypeVar

from bough.chat.template import ChatTemplate
from bough.config.training import OnlineConfig
from bough.engines.local.schedule import cuts
from bough.environments.base import configured, identity, tasks_of
from bough.environments.isolated import shut_down
from bough.environments.registry import find
from bough.environments.rubric import Rubric
from bough.errors import BoughError, InputError, RowError
from bough.event_loop import BackgroundLoop, Interrupts, StopRequestedError
from bough.ledger import plural
from bough.online.files import EpisodeFiles
from bough.online.samplers import Meter, MeteredEngine, Sampler, TemperatureAgents, open_sampler
from bough.policy.policy import Policy
from bough.rollouts.collect import (
    Attempt,
    LocalRunner,
    Runner,
    Tally,
    attempts,
    collect,
    count_fault,
    play_attempt,
    spare_what_is_loaded,
)
from bough.rollouts.tree import Played, sampled
from bough.types import Task, Trajectory

log = logging.getLogger(__name__)
T = TypeVar("T")


class LostError(BoughError):
    """Environment or engine failed too often: there is nothing to train on."""

    def __init__(self, num_finished: int, lost: list[str]) -> None:
        super().__init__(
            f"{len(lost)} of {plural(num_finished + len(lost), 'episode was', 'episodes were')} lost; {lost[0]}"
        )


class Player:
    """Plays episodes with what samples from the policy in training (`Sampler`).

    With `max_staleness` 0 nothing is in flight between `pause` and `renew`.
    """

    def __init__(
        self,
        config: OnlineConfig,
        policy: Policy,
        template: ChatTemplate,
        files: EpisodeFiles,
        interrupts: Interrupts | None = None,
    ) -> None:
        assert config.environment.name is not None
        self.config, self._interrupts = config, interrupts or Interrupts()
        self.environment_class = configured(find(config.environment.name), config.environment.options)
        self.rubric = Rubric(config.rewards, timeout_s=config.reward_timeout_s) if config.rewards else None
        self.reward = config.learnt_reward
        self.cuts = cuts(config.sampling)
        if self.cuts:
            log.warning(
                "top_p, top_k or min_p limit which tokens are sampled, but the loss uses the probabilities over all "
                "tokens: training is slightly off-policy. The metric calls_off_policy counts these calls."
            )
        held_out = list(self._held_out_tasks()) if config.held_out.every else []
        by_content = bool(config.environment.task_file or config.held_out.task_file)
        self._num_held_out = len(held_out)
        kept_apart = {identity(task, by_content=by_content) for task in held_out}
        every_task = self._all_tasks(config.environment.split, config.environment.task_file)
        self._tasks = (task for task in every_task if identity(task, by_content=by_content) not in kept_apart)
        self._known: list[Task] = []
        self._sampled = 0, 0
        self._loop = BackgroundLoop()
        self._sampler, self.meter, self.runner = self._open(policy, template)
        self.stream = EpisodeStream(
            self.runner,
            self._loop,
            concurrency=config.rollouts.concurrency,
            retries=config.rollouts.retries,
            keep=files.add,
            watch=self.meter.episodes,
        )

    def _open(self, policy: Policy, template: ChatTemplate) -> tuple[Sampler, Meter, Runner]:
        """What samples from the policy, here or on a cluster, and what plays episodes with it."""
        config = self.config
        if config.cluster.address is not None:
            from bough.online.cluster import ClusterSampler, VersionedRunner

            on_cluster = ClusterSampler(config, policy, self.environment_class, self._loop)
            meter = Meter(overlaps=on_cluster.overlaps)
            return on_cluster, meter, VersionedRunner(on_cluster.runner, on_cluster.publisher, meter)
        sampler = open_sampler(config, policy, template, self._loop)
        meter = Meter(overlaps=sampler.overlaps)
        agent_of = TemperatureAgents(config, MeteredEngine(sampler.tokens, meter), template)
        return sampler, meter, LocalRunner(self.environment_class, agent_of, config.limits)

    @property
    def starts_early(self) -> bool:
        """Whether episodes may be begun that are not needed in the end: not where judges are paid for them.

        Nor on a cluster, where an episode that is cancelled may be played on for a while.
        """
        judged = self.rubric is not None and bool(self.rubric.costs())
        return not judged and self.config.cluster.address is None

    def costs(self) -> dict[str, int]:
        """What judges have cost so far and how many workers were lost, as metrics."""
        found = self.rubric.costs() if self.rubric else {}
        lost = {"worker_losses": self._sampler.worker_losses} if self._sampler.worker_losses else {}
        return {f"{reward}/{name}": count for reward, costs in found.items() for name, count in costs.items()} | lost

    def lap(self) -> dict[str, float]:
        """Where the time went since the last lap, what was sampled in it, and how much of that was computed once."""
        now = sampled(getattr(self._sampler, "tokens", None))
        drawn, states = (new - old for new, old in zip(now, self._sampled, strict=True))
        self._sampled = now
        return self.meter.lap() | ({"sampled_shared": drawn / states} if states else {})

    def renew(self, step: int, version: int) -> None:
        """The weights have changed. Raises EngineError if the sampler cannot get them."""
        self._sampler.renew(f"step-{step}")
        self.stream.version = version  # after it: an episode that begins meanwhile never counts as newer than it is

    def pause(self) -> None:
        """Waits until the policy is free for other uses."""
        self._sampler.pause()

    def close(self) -> None:
        """Closes the sampler and the environment."""
        self.stream.close()
        self._loop.run(self._sampler.close())
        self._loop.run(shut_down(self.environment_class))
        self._loop.close()

    def attempts(self, number: int) -> tuple[Task, list[Attempt]]:
        """The task with this number, and the attempts at it. Where tasks run out, the first comes again."""
        while len(self._known) <= number and (task := next(self._tasks, None)) is not None:
            self._known.append(task)
        if not self._known:
            beside = f"no task is left to train on beside the {self._num_held_out} that are held out"
            raise InputError(beside if self._num_held_out else "no task matches these settings")
        task = self._known[number % len(self._known)]
        # The tasks of one batch size share a seed; one that comes again among them has its own.
        begin = number - number % self.config.optimizer.batch_size
        seed = self.config.seed * 1_000_003 + (number if number - len(self._known) >= begin else begin)
        found = attempts([task], self.config.rollouts.group_size, seed)
        return task, [replace(attempt, temperature=self.config.sampling.temperature) for attempt in found]

    def held_out(self) -> dict[str, Any]:
        """Success on tasks that are never trained on. Raises LostError if no episode could be finished."""
        config, held_out, records = self.config, self.config.held_out, list[Trajectory]()
        found = attempts(self._held_out_tasks(), 1, config.seed)
        wanted = [replace(attempt, temperature=held_out.temperature) for attempt in found]
        played = collect(
            self.runner,
            wanted,
            lambda record, _: records.append(record),
            concurrency=config.rollouts.concurrency,
            retries=config.rollouts.retries,
        )
        tally = self._until_stopped(played)
        for why, count in Counter(tally.lost.values()).items():
            log.warning("%d of %d held-out episodes are lost: %s", count, len(wanted), why)
        if tally.lost and not records:
            raise LostError(0, [f"{id}: {why}" for id, why in tally.lost.items()])
        known = [record.success for record in records if record.success is not None]
        values: dict[str, Any] = {"eval_lost": len(tally.lost)} if tally.lost else {}
        return values | ({"eval_success": fmean(known), "eval_episodes": len(known)} if known else {})

    def _until_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. StopRequestedError where the run is to stop before it is there."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop.loop)
        try:
            with self._interrupts.calling(future.cancel):
                return future.result()
        except CancelledError:
            raise StopRequestedError from None
        except KeyboardInterrupt:
            future.cancel()
            raise

    def _held_out_tasks(self) -> Iterator[Task]:
        held_out = self.config.held_out
        return islice(self._all_tasks(held_out.split, held_out.task_file), held_out.tasks)

    def _all_tasks(self, split: str, file: Path | None) -> Iterator[Task]:
        options, seed = self.config.environment.options, self.config.seed
        return tasks_of(self.environment_class, options=options, split=split, task_file=file, seed=seed)


# Episodes that are always in flight: as one ends, the next begins.
# They are played on an event loop in a thread of its own, so they continue while the caller trains. A finished
# episode is on disk before the caller hears of it.
# An episode whose environment or engine failed in every retry is tried again when nothing else is in flight, alone
# and just as often, as in `bough collect`; then it is lost.


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
        self._running: dict[asyncio.Task[None], set[int]] = {}  # and the places of its jobs that have no result yet
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
        while self._waiting:
            _, same = next(groupby(self._waiting, key=lambda job: job.number))
            jobs = list(islice(same, self.concurrency))
            if not (isinstance(self.runner, LocalRunner) and self.runner.can_share(jobs[0].attempt)):
                del jobs[1:]
            if self._in_flight + len(jobs) > self.concurrency:
                break
            self._start([self._waiting.popleft() for _ in jobs], alone=False)
        if not self._running and self._put_off:
            self._start([self._put_off.popleft()], alone=True)
        self._watch(self._in_flight)

    @property
    def _in_flight(self) -> int:
        return sum(map(len, self._running.values()))

    def _start(self, jobs: list[Job], *, alone: bool) -> None:
        left = set(range(len(jobs)))
        task = self._loop.loop.create_task(self._play(jobs, left, alone))
        self._running[task] = left
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._results.put(error)
        self._fill()

    async def _play(self, jobs: list[Job], left: set[int], alone: bool) -> None:
        """Plays the attempts at one task. Those that fail among others are tried again by themselves."""
        began, tally = self.version, Tally()
        # A task may be in flight twice: its number is part of the name.
        names = [f"{job.number}/{job.attempt.id}" for job in jobs]

        def ended(place: int, result: Played | BaseException) -> None:
            if isinstance(result, BaseException):
                count_fault(tally, jobs[place].attempt, result)
                return
            # The slot is free for the next episode while this one is written.
            left.discard(place)
            task = self._loop.loop.create_task(self._write(jobs[place], result[0], range(began, self.version + 1)))
            self._writing.add(task)
            task.add_done_callback(self._written)
            self._fill()

        first = self.retries + 1 if alone else 0
        if len(jobs) > 1:
            assert isinstance(self.runner, LocalRunner)
            await self.runner.play_each([job.attempt for job in jobs], names, ended)
            first = 1

        async def play_alone(place: int) -> None:
            job, tries = jobs[place], range(first, (2 if alone else 1) * (self.retries + 1))
            played = await play_attempt(self.runner, job.attempt, tries, tally, episode=names[place])
            if played is not None:
                ended(place, played)
            elif self.retries and not alone:
                self._put_off.append(job)
            else:
                self._results.put(Result(job, None, tally.lost[job.attempt.id]))
            left.discard(place)

        await asyncio.gather(*map(play_alone, sorted(left)))

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
        running = dict(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*self._writing, return_exceptions=True)
        self._watch(0)
        return sum(map(len, running.values()))  # others may just have a result
