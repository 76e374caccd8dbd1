"""Many episodes at once: worlds step while the model writes, and nothing that is finished is lost.

A world or an engine that breaks costs an episode a retry, which is counted. An episode whose
retries are used up is put off to the end and tried as often again, alone: a browser that
dies takes all its episodes along, and a long one may be under way each time. One that
breaks even then is left out and named, never recorded as the agent's failure.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bough.config.evaluation import EvalConfig
from bough.config.rollouts import CollectConfig, LimitsConfig
from bough.engines.base import EngineError
from bough.environments.base import Environment, WorldError
from bough.environments.tasks import first_tasks, tasks_of
from bough.errors import BoughError, RowError
from bough.rollouts.agents import Agent
from bough.rollouts.episode import play
from bough.terminal import console
from bough.types import Task, Trajectory

# Characters kept of why an episode was lost.
MAX_REASON = 1000
Images = list[tuple[int, bytes]]
Finished = Callable[[Trajectory, Images], None]


@dataclass
class Tally:
    """How it is going."""

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


@dataclass(frozen=True)
class Attempt:
    """One episode to be played."""

    id: str
    task: Task
    seed: int


class AllLostError(BoughError):
    """World or engine let no episode come to its end: nothing was learnt."""

    def __init__(self, lost: Mapping[str, str]) -> None:
        episode, why = next(iter(lost.items()))
        super().__init__(f"no episode came to its end, {len(lost)} were given up; {episode}: {why}")


def wanted_tasks(environment_class: type[Environment], config: CollectConfig | EvalConfig) -> list[Task]:
    """The tasks that the settings ask for. Says so where there are fewer."""
    source = tasks_of(
        environment_class, options=config.options, split=config.split, task_file=config.task_file, seed=config.seed
    )
    tasks = first_tasks(source, config.tasks)
    if len(tasks) < config.tasks:
        console.err().print(f"{config.tasks} tasks were asked for; there are {len(tasks)}", style="yellow")
    return tasks


def attempts(tasks: Iterable[Task], count: int, seed: int) -> Iterator[Attempt]:
    """`count` attempts at each task, each with an id and a seed that depend on nothing else."""
    for task in tasks:
        for number in range(count):
            id = f"{task.id}#{number}"
            digest = hashlib.blake2b(f"{seed} {id}".encode(), digest_size=7).digest()
            yield Attempt(id, task, int.from_bytes(digest))


async def collect(
    environment_class: type[Environment],
    agent: Agent,
    wanted: Iterable[Attempt],
    finished: Finished,
    *,
    limits: LimitsConfig,
    concurrency: int = 16,
    retries: int = 3,
    tell: Callable[[Tally], None] | None = None,
) -> Tally:
    """Plays every attempt and hands each finished episode to `finished`, in the order in which they end.

    The first error that is neither world's nor engine's stops all of it: it is the
    user's (`InputError`) or ours.
    """
    tally, begun = Tally(), time.monotonic()
    put_off: list[Attempt] = []

    async def worker(queue: Iterator[Attempt], tried: int) -> None:
        for attempt in queue:
            result = await _play(environment_class, agent, attempt, limits, range(tried, tried + retries + 1), tally)
            tally.seconds = time.monotonic() - begun
            if result is not None and _keep(result, finished, tally):
                tally.add(result[0])
            elif result is None and not tried:
                put_off.append(attempt)
            if tell is not None:
                tell(tally)

    queue = iter(wanted)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker(queue, 0))
        if retries:
            await worker(iter(put_off), retries + 1)
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    tally.seconds = time.monotonic() - begun
    return tally


async def _play(
    environment_class: type[Environment],
    agent: Agent,
    attempt: Attempt,
    limits: LimitsConfig,
    tries: range,
    tally: Tally,
) -> tuple[Trajectory, Images] | None:
    for again in tries:
        try:
            trajectory, images = await play(
                environment_class, attempt.task, agent, id=attempt.id, seed=attempt.seed, limits=limits
            )
        except (WorldError, EngineError) as error:
            tally.faults["world" if isinstance(error, WorldError) else "engine"] += 1
            tally.lost[attempt.id] = _reason(error)
            await asyncio.sleep(min(0.1 * 2 ** (again - tries.start), 5.0))
            continue
        tally.lost.pop(attempt.id, None)
        if again:
            trajectory = trajectory.model_copy(update={"info": {**trajectory.info, "retries": again}})
        return trajectory, images
    return None


def _keep(result: tuple[Trajectory, Images], finished: Finished, tally: Tally) -> bool:
    """Hands a finished episode on. One that cannot be written down is lost; playing it again would not help."""
    try:
        finished(*result)
    except RowError as error:
        tally.faults["world"] += 1
        tally.lost[result[0].id] = _reason(error)
        return False
    return True


def _reason(error: Exception) -> str:
    """What is kept of an error: it may quote anything, of any length."""
    return console.printable(str(error))[:MAX_REASON]
