"""Many episodes at the same time: environments step while the model generates, and finished episodes are kept.

If an environment or an engine fails, the episode is retried, and the failure is counted. An
episode that has used up its retries is tried again at the end, alone and just as often: a
browser that dies ends all its episodes, possibly the same long one each time. An episode
that fails even then is left out and named, never recorded as the agent's failure.
"""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self

import yaml
from pydantic_core import from_json

from bough.config.base import flattened, leaves
from bough.config.groups import ClusterConfig, CollectConfig, LimitsConfig, PlayedTasksConfig
from bough.config.yaml_file import YamlFile
from bough.data.reader import Reader
from bough.data.writer import Writer
from bough.engines.base import EngineError
from bough.environments.base import Environment, EnvironmentFailedError, digest, first_tasks, tasks_of
from bough.errors import BoughError, InputError, RowError
from bough.files import (
    derived_seed,
    locked,
    read_json,
    refuse_links,
    remove,
    replacing,
    text_digest,
    without_absolute,
    write_atomically,
    write_json,
)
from bough.ledger import plural
from bough.models.resolve import stamp
from bough.rollouts.episode import NO_EXPERT, Agent, play
from bough.rollouts.tree import Ended, Played, Player, RolloutTree, can_share
from bough.terminal import console
from bough.types import Task, Trajectory

Images = list[tuple[int, bytes]]


class Runner(Protocol):
    """Plays attempts, many at the same time."""

    async def play(self, attempt: Attempt, *, episode: str | None = None) -> tuple[Trajectory, Images]:
        """Plays one attempt; returns its record and the images of its observations, each with its turn.

        `episode` is its name in the engine, by default the attempt's id. Raises
        EnvironmentFailedError or EngineError if environment or engine failed: that says nothing
        about the agent, and the attempt may be played again.
        """


@dataclass(frozen=True)
class LocalRunner:
    """Plays in this process. `agent_of` says who plays an attempt."""

    environment_class: type[Environment]
    agent_of: Callable[[Attempt], Agent]
    limits: LimitsConfig

    @classmethod
    def of(cls, environment_class: type[Environment], agent: Agent, limits: LimitsConfig) -> LocalRunner:
        """One agent plays all attempts."""
        return cls(environment_class, lambda _: agent, limits)

    async def play(self, attempt: Attempt, *, episode: str | None = None) -> tuple[Trajectory, Images]:
        return await play(
            self.environment_class,
            attempt.task,
            self.agent_of(attempt),
            id=attempt.id,
            episode=episode,
            seed=attempt.seed,
            limits=self.limits,
        )

    def can_share(self, attempt: Attempt) -> bool:
        """Whether attempts at the task of this one can be played together, by `play_each`."""
        return can_share(self.environment_class, self.agent_of(attempt))

    async def play_each(self, attempts: Sequence[Attempt], names: Sequence[str], ended: Ended) -> None:
        """Plays attempts at one task. `names` are theirs in the engine; `ended` gets each result by its place."""
        players = [Player(one.id, one.seed, name) for one, name in zip(attempts, names, strict=True)]
        task, agent = attempts[0].task, self.agent_of(attempts[0])
        await RolloutTree(self.environment_class, task, agent, players, limits=self.limits, ended=ended).play()


@dataclass(frozen=True)
class Attempt:
    """One episode to be played, online at this temperature."""

    id: str
    task: Task
    seed: int
    temperature: float | None = None


def wanted_tasks(
    environment_class: type[Environment], wanted: PlayedTasksConfig, num_tasks: int, seed: int
) -> list[Task]:
    """The tasks that the settings ask for. Warns if there are fewer."""
    source = tasks_of(
        environment_class,
        options=wanted.options,
        split=wanted.split,
        task_file=wanted.task_file,
        seed=seed,
    )
    tasks = first_tasks(source, num_tasks)
    if len(tasks) < num_tasks:
        console.err().print(f"{num_tasks} tasks were requested; there are only {len(tasks)}", style="yellow")
    return tasks


def attempts(tasks: Iterable[Task], count: int, seed: int) -> Iterator[Attempt]:
    """`count` attempts at each task. An attempt's id and seed depend on the task, its number and `seed` alone."""
    for task in tasks:
        for number in range(count):
            id = f"{task.id}#{number}"
            yield Attempt(id, task, derived_seed(seed, id))


# Python's garbage collector while episodes are played, and between the stages of a run.
# Its full collections walk through every object of the process, and loading torch and transformers leaves hundreds of
# thousands that stay until the end. They took a quarter of the host's time per turn. The rest, a tenth, went into
# collections after every 700 new objects: a turn makes hundreds, and almost none of them is garbage in a cycle.

# New objects between two collections. A cycle may hold the tokens of a few hundred turns until the next one.
THRESHOLD = 20_000


@cache
def spare_what_is_loaded() -> None:
    """Takes the objects that exist now out of all later collections and makes these rarer, once per process."""
    gc.collect()
    gc.freeze()
    _, *older = gc.get_threshold()
    gc.set_threshold(THRESHOLD, *older)


def free_gpu_memory() -> None:
    """Frees what finished work has left on the GPU, for the next work of this process and for other processes.

    Models refer to themselves, so only the collector frees them, and it leaves alone what it was told to spare.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    spared = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    torch.cuda.empty_cache()
    if spared:
        gc.freeze()


# Characters that are kept of an error.
MAX_REASON = 1000
# Episodes that are named for one error.
MAX_NAMED = 3
Finished = Callable[[Trajectory, Images], Awaitable[None] | None]


@dataclass
class Tally:
    """Counts of what was played so far."""

    episodes: int = 0
    successes: int = 0
    unknown: int = 0
    turns: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    stops: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    lost: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, trajectory: Trajectory) -> None:
        self.episodes += 1
        self.successes += trajectory.success is True
        self.unknown += trajectory.success is None
        self.turns += len(trajectory.turns)
        self.prompt_tokens += int(str(trajectory.info.get("prompt_tokens", 0)))
        self.completion_tokens += int(str(trajectory.info.get("completion_tokens", 0)))
        self.stops[trajectory.stop or "unknown"] += 1
        self.errors.update(turn.error for turn in trajectory.turns if turn.error)

    def to_json(self) -> dict[str, Any]:
        known = self.episodes - self.unknown
        return {
            "episodes": self.episodes,
            "successes": self.successes,
            "success_rate": self.successes / known if known else None,
            "turns": self.turns,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "stops": dict(self.stops.most_common()),
            "errors": dict(self.errors.most_common()),
            "faults": dict(self.faults.most_common()),
            "lost": self.lost,
            "seconds": round(self.seconds, 3),
        }


class AllLostError(BoughError):
    """Environment or engine failed in every episode: there is no result."""

    def __init__(self, lost: Mapping[str, str]) -> None:
        episode, why = next(iter(lost.items()))
        several = f"all {len(lost)} episodes failed; " if len(lost) > 1 else "the only episode failed; "
        super().__init__(f"{several}{episode}: {why}")


class NoExpertError(BoughError):
    """The expert had no advice in any episode: there is no result."""

    def __init__(self, num_episodes: int) -> None:
        what = plural(num_episodes, "episode ends", "episodes end")
        super().__init__(
            f"{what} with {NO_EXPERT}: the environment's expert has no advice for these tasks; "
            "give other tasks or another model (--model)"
        )


async def collect(
    runner: Runner,
    wanted: Iterable[Attempt],
    finished: Finished,
    *,
    concurrency: int = 16,
    retries: int = 3,
    tell: Callable[[Tally], None] | None = None,
) -> Tally:
    """Plays every attempt and passes each finished episode to `finished`, in the order in which they end.

    What `finished` returns is awaited while the next episode is played; an episode counts from then on.
    The first error that is neither the environment's nor the engine's stops everything.
    """
    spare_what_is_loaded()
    tally, begun = Tally(), time.monotonic()
    put_off: list[Attempt] = []
    places = asyncio.Semaphore(concurrency)
    unwritten = asyncio.Semaphore(concurrency)  # a slow disk must not fill the memory

    async def written(record: Trajectory, writing: Awaitable[None] | None) -> None:
        try:
            if writing is not None:
                await writing
        except RowError as error:
            _lose(tally, record, error)
        else:
            tally.add(record)
        finally:
            unwritten.release()
        note()

    def note() -> None:
        tally.seconds = time.monotonic() - begun
        if tell is not None:
            tell(tally)

    async def free() -> None:
        await unwritten.acquire()
        places.release()

    def keep(group: asyncio.TaskGroup, result: Played) -> None:
        try:  # at once, so that the last episode of work that is cancelled is written too
            writing = finished(*result)
        except RowError as error:
            _lose(tally, result[0], error)
            places.release()
            note()
        else:
            group.create_task(written(result[0], writing))
            group.create_task(free())

    async def alone(group: asyncio.TaskGroup, attempt: Attempt, tries: range) -> None:
        result = await play_attempt(runner, attempt, tries, tally)
        if result is not None:
            keep(group, result)
            return
        if tries.start <= retries:
            put_off.append(attempt)
        places.release()
        note()

    async def together(group: asyncio.TaskGroup, attempts: list[Attempt]) -> None:
        def ended(place: int, result: Played | BaseException) -> None:
            if isinstance(result, BaseException):
                count_fault(tally, attempts[place], result)
                group.create_task(alone(group, attempts[place], range(1, retries + 1)))
            else:
                keep(group, result)

        assert isinstance(runner, LocalRunner)
        await runner.play_each(attempts, [one.id for one in attempts], ended)

    try:
        async with asyncio.TaskGroup() as group:
            for attempts in groups(runner, wanted, concurrency):
                for _ in attempts:
                    await places.acquire()
                if len(attempts) > 1:
                    group.create_task(together(group, attempts))
                else:
                    group.create_task(alone(group, attempts[0], range(retries + 1)))
        async with asyncio.TaskGroup() as group:
            for attempt in put_off if retries else ():
                await places.acquire()
                await alone(group, attempt, range(retries + 1, 2 * retries + 2))
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    tally.seconds = time.monotonic() - begun
    return tally


def groups(runner: Runner, wanted: Iterable[Attempt], most: int) -> Iterator[list[Attempt]]:
    """The attempts, those that can be played together in one list: neighbours at one task."""
    for _, attempts in groupby(wanted, key=lambda one: (id(one.task), one.temperature)):
        several = list(attempts)
        size = most if isinstance(runner, LocalRunner) and runner.can_share(several[0]) else 1
        yield from (several[begin : begin + size] for begin in range(0, len(several), size))


async def play_attempt(
    runner: Runner, attempt: Attempt, tries: range, tally: Tally, *, episode: str | None = None
) -> tuple[Trajectory, Images] | None:
    """Plays one attempt until it is finished; None where all `tries` failed, with the last error in the tally.

    `episode` is its name in the engine, where an attempt's id may be in flight twice.
    """
    for again in tries:
        try:
            trajectory, images = await runner.play(attempt, episode=episode)
        except (EnvironmentFailedError, EngineError) as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError from error  # not to be tried again, whatever it made of that
            count_fault(tally, attempt, error)
            await asyncio.sleep(min(0.1 * 2 ** (again - tries.start), 5.0))
            continue
        tally.lost.pop(attempt.id, None)
        if again:
            trajectory = trajectory.model_copy(update={"info": {**trajectory.info, "retries": again}})
        return trajectory, images
    return None


def count_fault(tally: Tally, attempt: Attempt, error: BaseException) -> None:
    """Counts a failure. The attempt is lost, unless a retry succeeds."""
    tally.faults["environment" if isinstance(error, EnvironmentFailedError) else "engine"] += 1
    tally.lost[attempt.id] = _reason(error)


def _lose(tally: Tally, record: Trajectory, error: RowError) -> None:
    """An episode that cannot be written is lost; a retry would not help."""
    tally.faults["environment"] += 1
    tally.lost[record.id] = _reason(error)


def _reason(error: BaseException) -> str:
    """The part of an error that is kept: it may quote anything, of any length."""
    return console.printable(str(error))[:MAX_REASON]


def lost_lines(lost: Mapping[str, str]) -> Iterator[str]:
    """The lost episodes, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for episode, why in lost.items():
        by_reason.setdefault(why, []).append(episode)
    for why, episodes in by_reason.items():
        more = [f"{len(episodes) - MAX_NAMED} more"] if len(episodes) > MAX_NAMED else []
        yield f"lost {', '.join([*sorted(episodes)[:MAX_NAMED], *more])}: {why}"


SETTINGS, TRAJECTORIES, IMAGES = "config.yaml", "trajectories.jsonl", "images"
REPORT, RESCORED, WEIGHTS = "report.json", "rescored.json", "weights.json"
FILES = (TRAJECTORIES, SETTINGS, REPORT, RESCORED, WEIGHTS, IMAGES)
# Settings that change how many episodes are played, or how fast, but not their content.
FREE = {
    *("output", "concurrency", "retries", "overwrite", "tasks", "attempts", "rescore", "key_variable", "base_url"),
    *leaves(ClusterConfig),
}
WAY_OUT = "give another --output, or --overwrite"
MAX_NAMED_TASKS = 10


class Collection:
    """A folder of played episodes, open for more. `finished` maps the id of each episode to its task's digest.

        config.yaml            the settings; no file has absolute paths, theirs are relative to the folder
        trajectories.jsonl     one episode per line, as it happened
        images/ID/TURN.png     screenshots, if they were requested
        report.json            the numbers
        weights.json           names, sizes and times of the model's files
        rescored.json          the trainer's log-probabilities of some replies, by episode and turn

    An episode is written completely or not at all. A collection that was killed resumes with the missing episodes,
    if settings, weights and tasks are the same. One that failed before its first episode leaves nothing.
    """

    def __init__(self, config: CollectConfig) -> None:
        self.path = config.output.absolute()  # an environment may change the working directory
        self.trajectories = self.path / TRAJECTORIES
        self._new = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        weights = stamp(config.agent.model, config.agent.adapter)
        try:
            begun = self.trajectories.exists() and self.trajectories.stat().st_size > 0
            there = [name for name in FILES if (self.path / name).exists()]
            if there and config.overwrite:
                self._clear()
            elif begun and SETTINGS in there:
                self._agree(config, weights)
            elif there and not self._is_ours():  # one without an episode has no settings to keep
                raise InputError(f"{self.path} contains {', '.join(there)}, but no collection; {WAY_OUT}")
            refuse_links(self.trajectories, self.path / IMAGES)
            self.path.mkdir(parents=True, exist_ok=True)
            shown = without_absolute(config.recorded(), self.path)
            write_atomically(self.path / SETTINGS, yaml.safe_dump(shown, sort_keys=False, allow_unicode=True))
            write_json(self.path / WEIGHTS, weights)
        except OSError as error:
            raise InputError(f"--output {self.path}: cannot be used as a folder: {error.strerror}") from None
        self._writer = Writer(self.trajectories, batch_s=0.0)
        self._disk = ThreadPoolExecutor(1, "bough-collection")  # one thread: episodes are appended to one file
        self.finished = {record.id: digest(record.task) for record in self}

    def __iter__(self) -> Iterator[Trajectory]:
        """Every recorded episode, read one at a time."""
        reader = Reader(self.trajectories, format="bough", on_error="skip")
        return (record for record in reader if isinstance(record, Trajectory))

    def missing(self, wanted: Iterable[Attempt]) -> list[Attempt]:
        """The episodes that are not recorded yet. One that was recorded for a different task is an InputError."""
        wanted = list(wanted)
        known = [one for one in wanted if one.id in self.finished]
        tasks = {id(one.task): one.task for one in known}  # attempts share theirs, and its data may be a whole game
        digests = {key: digest(task) for key, task in tasks.items()}
        others = [one.id for one in known if self.finished[one.id] != digests[id(one.task)]]
        if others:
            more = [f"and {len(others) - MAX_NAMED_TASKS} more"] if len(others) > MAX_NAMED_TASKS else []
            raise InputError(
                f"{self.path} contains episodes of different tasks with the same ids; {WAY_OUT}:",
                [*others[:MAX_NAMED_TASKS], *more],
            )
        return [attempt for attempt in wanted if attempt.id not in self.finished]

    def add(self, trajectory: Trajectory, images: list[tuple[int, bytes]]) -> None:
        """Writes a finished episode, its images first."""
        if images:
            plain = re.sub(r"[^\w#-]+", "_", trajectory.id)[:60]
            # A digest keeps similar ids apart.
            name = plain if plain == trajectory.id else f"{plain}-{text_digest(trajectory.id, size=4)}"
            folder = self.path / IMAGES / name
            folder.mkdir(parents=True, exist_ok=True)
            refuse_links(folder)
            names = []
            for turn, image in images:
                name = f"{turn:03}.png"
                remove(folder / name)
                (folder / name).write_bytes(image)
                names.append(f"{IMAGES}/{folder.name}/{name}")
            trajectory = trajectory.model_copy(update={"info": {**trajectory.info, "images": names}})
        self._writer.write(trajectory)
        self._writer.flush()
        self.finished[trajectory.id] = digest(trajectory.task)

    def add_in_thread(self, trajectory: Trajectory, images: list[tuple[int, bytes]]) -> Awaitable[None]:
        """Like `add`, without the event loop waiting for the disk.

        The episode is written also if what this returns is cancelled or never awaited.
        """
        return asyncio.shield(asyncio.wrap_future(self._disk.submit(self.add, trajectory, images)))

    def finish(self, order: Sequence[str]) -> None:
        """Sorts the episodes into this order: the same settings give the same file, whichever episode ended first."""
        place = {id: number for number, id in enumerate(order)}
        with self.trajectories.open("rb") as file:
            found = sorted(lines := list(_lines(file, place)))
            if found == lines:
                return
            try:
                with replacing(self.trajectories) as draft:
                    with draft.open("wb") as ordered:
                        for _, offset, size in found:
                            file.seek(offset)
                            ordered.write(file.read(size))
                    self._writer.close()
            except OSError as error:
                problem = f"cannot be sorted ({error.strerror}); its episodes are safe"
                raise BoughError(f"{self.trajectories}: {problem}") from error

    def keep_rescored(self, logprobs: dict[str, dict[int, list[float]]]) -> None:
        """For `bough view`, which shows the gap between sampler and trainer."""
        if logprobs:
            write_json(self.path / RESCORED, logprobs)

    def report(self, numbers: dict[str, Any]) -> None:
        write_json(self.path / REPORT, numbers)

    def old_report(self) -> dict[str, Any] | None:
        """The numbers of an earlier run, if they cover all recorded episodes."""
        numbers = _json(self.path / REPORT)
        whole = isinstance(numbers, dict) and numbers.get("episodes") == len(self.finished)
        return numbers if whole else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._disk.shutdown()
        self._writer.close()
        if error is not None and not self.finished:
            self._clear()
            for folder in self._new:
                with suppress(OSError):  # something else is in it by now
                    folder.rmdir()

    def _clear(self) -> None:
        """Removes the collection; other files in the folder stay. Raises an error while another process adds to it."""
        if self.trajectories.is_file() and not self.trajectories.is_symlink():
            try:
                with locked(self.trajectories, wait=False):
                    pass
            except BlockingIOError:
                raise InputError(f"{self.trajectories}: another process is writing it; {WAY_OUT}") from None
        for name in FILES:
            remove(self.path / name)

    def _is_ours(self) -> bool:
        """Whether a collection began here: its settings are the first that it writes."""
        try:
            return YamlFile.read(self.path / SETTINGS).values.get("command") == CollectConfig.command
        except (OSError, InputError):
            return False

    def _agree(self, config: CollectConfig, weights: list[list[str | int]]) -> None:
        """A collection resumes only with its settings, and with its weights: a folder may have been trained again."""
        file = self.path / SETTINGS
        try:
            values = YamlFile.read(file).values
            if not values:
                raise InputError(f"{file}: the file is empty")
        except InputError as error:
            raise InputError(f"{error}; the settings of the episodes beside it are unknown: {WAY_OUT}") from None
        old = without_absolute(flattened(CollectConfig, values), self.path)
        new = without_absolute(config.flat_dump(), self.path)
        changed = sorted(key for key in new if key not in FREE and old.get(key) != new[key])
        if changed:
            raise InputError(
                f"{self.path} contains episodes recorded with different settings; {WAY_OUT}:",
                [f"{key} was {old.get(key)!r}, now {new[key]!r}" for key in changed],
            )
        if (self.path / WEIGHTS).exists() and _json(self.path / WEIGHTS) != weights:
            model = config.agent.model
            raise InputError(f"{model} has changed since its episodes in {self.path} were played; {WAY_OUT}")


def _lines(file: BinaryIO, place: dict[str, int]) -> Iterator[tuple[int, int, int]]:
    """For each line its place in the order, its offset and its size. A line that is not an episode comes last."""
    offset = 0
    for line in file:
        try:
            id = from_json(line)["id"]
        except (ValueError, TypeError, KeyError):
            id = None
        yield place.get(id, len(place)) if isinstance(id, str) else len(place), offset, len(line)
        offset += len(line)


def _json(file: Path) -> Any:
    """The content of the file; None if it cannot be read."""
    try:
        return read_json(file)
    except (OSError, ValueError):
        return None
