"""The experts from random states: do they still win after an agent has acted at random?

    python -m benchmarks.experts household [--states 10000] [--options claim=true] [--output FILE]

Each state is a task of its own, brought into a random state (`random_states.py`). From there the
expert has as many replies as an episode of the environment may have. A state is lost if it is
proven that no reply wins any more; the reasons are in `lost`.
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

from benchmarks import web_losses
from benchmarks.random_states import random_state

from bough.environments.base import Environment, configured, tasks_of
from bough.environments.isolated import Isolated, shut_down
from bough.environments.registry import find
from bough.types import Task
from bough.worlds.web.environment import EXPERTS

FINE = ("won", "lost: ")


async def outcome(environment_class: type[Environment], task: Task, rng: Random) -> tuple[str, int]:
    """What became of one state, and how many replies the expert needed."""
    environment = await random_state(environment_class, task, rng)
    try:
        before = len(getattr(environment._made, "history", ()))  # actions that are not the expert's
        if (reason := await lost(environment, before)) is not None:
            return f"lost: {reason}", 0
        word, replies = await played(environment, environment_class.max_turns)
        # Some pages show only later what an earlier action has spoiled.
        if (
            word != "won"
            and environment_class.name == "web"
            and (reason := await lost(environment, before)) is not None
        ):
            return f"lost: {reason}", 0
        return word, replies
    finally:
        await environment.close()


async def played(environment: Isolated, limit: int) -> tuple[str, int]:
    """What comes of the expert's play, and after how many replies. What it cannot know it has to try, but only once."""
    refused = False
    for replies in range(2 * limit):
        advice = await environment.expert()
        if advice is None:
            return "no advice", replies
        seen = await environment.step(advice)
        if seen.done and seen.success and replies >= limit:
            return "won, but after the turn limit", replies + 1
        if seen.done:
            return "won" if seen.success else "not won", replies + 1
        if refused and seen.error == "invalid_action":
            return "invalid advice", replies
        refused = seen.error == "invalid_action"
    return "not won in twice the turn limit", 2 * limit


async def lost(environment: Isolated, before: int) -> str | None:
    """Why the state cannot be won, if that is certain; the first `before` actions led to it."""
    made: Any = environment._made
    if type(made).name == "web":
        return await web_losses.lost(made, before)
    if type(made).name != "household" or (held := made.engine.world.held) is None:
        return None
    if any(made.engine.world.fits(held, i) for i in range(len(made.engine.world.game.receptacles))):
        return None
    return "the agent holds a thing that no receptacle of the game takes, so it can never put it down"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment")
    parser.add_argument("--states", type=int, default=10_000)
    parser.add_argument("--options", nargs="*", default=[])
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    options: dict[str, Any] = dict(option.split("=", 1) for option in given.options)
    if given.environment == "web":
        options.setdefault("pages", sorted(EXPERTS))
    environment_class = configured(find(given.environment), options)
    gate, begin = asyncio.Semaphore(given.at_once), time.perf_counter()
    counts: Counter[str] = Counter()
    failed: defaultdict[str, list[str]] = defaultdict(list)
    longest = 0

    async def one(number: int, task: Task) -> None:
        nonlocal longest
        async with gate:
            word, replies = await outcome(environment_class, task, Random(number))
        counts[word] += 1
        longest = max(longest, replies if word == "won" else 0)
        if not word.startswith(FINE):
            failed[word].append(f"{task.id} (state {number})")
            print(word, failed[word][-1], flush=True)

    def tasks() -> Any:
        """All tasks, then all again: a benchmark may have fewer than states are wanted."""
        while True:
            yield from tasks_of(environment_class, options=options, split="train", task_file=None, seed=1)

    source = tasks()
    for start in range(0, given.states, 100):  # a task may contain a whole game: not all of them at a time
        some = list(islice(source, min(100, given.states - start)))
        await asyncio.gather(*(one(start + at, task) for at, task in enumerate(some)))
        print(f"{start + len(some)} states, {time.perf_counter() - begin:.0f} s", dict(counts), flush=True)
    await shut_down(environment_class)
    lines = [
        f"{' '.join([given.environment, *given.options])}: {counts.total():,} random states, "
        f"{time.perf_counter() - begin:.0f} s, Python {platform.python_version()}, {platform.machine()}, "
        f"{time.strftime('%F')}",
        "", "| outcome | states |", "|---|---|", *(f"| {word} | {count:,} |" for word, count in counts.most_common()),
        "", f"The longest win took the expert {longest} of {environment_class.max_turns} replies.",
        *(f"- {word}: {', '.join(where)}" for word, where in failed.items()),
    ]  # fmt: skip
    print("\n".join(lines))
    if given.output:
        given.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
