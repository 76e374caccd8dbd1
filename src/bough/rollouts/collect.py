"""Many episodes at the same time: environments step while the model generates, and finished episodes are kept.

If an environment or an engine fails, the episode is retried, and the failure is counted. An
episode that has used up its retries is tried again at the end, alone and just as often: a
browser that dies ends all its episodes, possibly the same long one each time. An episode
that fails even then is left out and named, never recorded as the agent's failure.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bough.engines.base import EngineError
from bough.environments.base import EnvironmentFailedError
from bough.errors import BoughError, RowError
from bough.plural import plural
from bough.rollouts.agents import NO_EXPERT
from bough.rollouts.attempt import Attempt
from bough.rollouts.garbage import spare_what_is_loaded
from bough.rollouts.runner import Images, Runner
from bough.terminal import console
from bough.types import Trajectory

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

    async def worker(group: asyncio.TaskGroup, queue: Iterator[Attempt], tried: int) -> None:
        for attempt in queue:
            result = await play_attempt(runner, attempt, range(tried, tried + retries + 1), tally)
            if result is None:
                if not tried:
                    put_off.append(attempt)
                note()
                continue
            try:  # at once, so that a cancelled worker's last episode is written too
                writing = finished(*result)
            except RowError as error:
                _lose(tally, result[0], error)
                note()
            else:
                group.create_task(written(result[0], writing))
                await unwritten.acquire()

    queue = iter(wanted)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker(group, queue, 0))
        if retries:
            async with asyncio.TaskGroup() as group:
                group.create_task(worker(group, iter(put_off), retries + 1))
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    tally.seconds = time.monotonic() - begun
    return tally


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
            tally.faults["environment" if isinstance(error, EnvironmentFailedError) else "engine"] += 1
            tally.lost[attempt.id] = _reason(error)
            await asyncio.sleep(min(0.1 * 2 ** (again - tries.start), 5.0))
            continue
        tally.lost.pop(attempt.id, None)
        if again:
            trajectory = trajectory.model_copy(update={"info": {**trajectory.info, "retries": again}})
        return trajectory, images
    return None


def _lose(tally: Tally, record: Trajectory, error: RowError) -> None:
    """An episode that cannot be written is lost; a retry would not help."""
    tally.faults["environment"] += 1
    tally.lost[record.id] = _reason(error)


def _reason(error: Exception) -> str:
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
