"""The experts from random states: do they still win after an agent has acted at random?

    python benchmarks/experts.py household [--states 10000] [--options claim=true] [--output FILE]

Each state is a task of its own: up to 40 random actions among the possible ones, one in ten
of them a reply that means nothing, then the expert to the end. A state is lost if random
actions ended the episode, and a dead end if the world itself rules out a win from there
(household: the agent holds a thing that no receptacle of the game takes).
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import time
from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from bough.environments.base import Environment
from bough.environments.isolated import Isolated, shut_down
from bough.environments.registry import find
from bough.environments.tasks import configured, tasks_of
from bough.types import Task

MOST_ACTIONS, NONSENSE = 40, 0.1


async def outcome(environment_class: type[Environment], task: Task, rng: Random, limit: int) -> tuple[str, int]:
    """What became of one state, and how many replies the expert needed."""
    environment = Isolated(environment_class, task)
    try:
        await environment.start()
        for _ in range(rng.randrange(MOST_ACTIONS)):
            choices = sorted(await environment.choices())
            reply = "Hm." if rng.random() < NONSENSE or not choices else await environment.say(rng.choice(choices))
            if (await environment.step(reply)).done:
                return "ended by a random action", 0
        for replies in range(limit):
            advice = await environment.expert()
            if advice is None:
                return "dead end" if dead_end(environment) else "no advice", replies
            seen = await environment.step(advice)
            if seen.done:
                return "won" if seen.success else "lost", replies + 1
            if seen.error:
                return "invalid advice", replies
        return "too long", limit
    finally:
        await environment.close()


def dead_end(environment: Isolated) -> bool:
    """Whether the household's agent holds something that it can never put down."""
    world: Any = getattr(getattr(environment._made, "engine", None), "world", None)
    if world is None or world.held is None:
        return False
    return not any(world.fits(world.held, receptacle) for receptacle in range(len(world.game.receptacles)))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment")
    parser.add_argument("--states", type=int, default=10_000)
    parser.add_argument("--options", nargs="*", default=[])
    parser.add_argument("--limit", type=int, default=150, help="replies of the expert")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    options = dict(option.split("=", 1) for option in given.options)
    environment_class = configured(find(given.environment), options)
    tasks = islice(tasks_of(environment_class, options=options, split="train", task_file=None, seed=1), given.states)
    gate, begin = asyncio.Semaphore(given.at_once), time.perf_counter()
    counts: Counter[str] = Counter()
    failed: defaultdict[str, list[str]] = defaultdict(list)
    longest = 0

    async def one(number: int, task: Task) -> None:
        nonlocal longest
        async with gate:
            word, replies = await outcome(environment_class, task, Random(number), given.limit)
        counts[word] += 1
        longest = max(longest, replies)
        if word not in ("won", "ended by a random action", "dead end"):
            failed[word].append(f"{task.id} (state {number})")

    for begin_at in range(0, given.states, 100):  # a task may contain a whole game: not all of them at a time
        some = list(islice(tasks, 100))
        await asyncio.gather(*(one(begin_at + at, task) for at, task in enumerate(some)))
    await shut_down(environment_class)
    lines = [
        f"{given.environment} {' '.join(given.options)}: {counts.total()} random states, "
        f"{time.perf_counter() - begin:.0f} s, Python {platform.python_version()}, {platform.machine()}, "
        f"{time.strftime('%F')}",
        "", "| outcome | states |", "|---|---|", *(f"| {word} | {count} |" for word, count in counts.most_common()), "",
        f"The longest win took the expert {longest} replies.",
        *(f"{word}: {', '.join(where[:20])}" for word, where in failed.items()),
    ]  # fmt: skip
    print("\n".join(lines))
    if given.output:
        given.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
