"""The scripted experts on their pages: how often they succeed, in how many actions.

    python benchmarks/web_expert.py [--seeds 100] [--pages click-button login-user] [--output FILE]

Seeds of the test split, in order. An episode that the expert does not finish in the
environment's usual number of turns is a failure. Pages on which it stays below 99% are
listed too, with what their best script reaches: they are playable, but not demonstrated.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import time
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from bough.environments.base import EnvironmentFailedError
from bough.types import Task
from bough.worlds.web.environment import EXPERTS, SEEDS_PER_SPLIT, Web
from bough.worlds.web.page import Pool


class Result(NamedTuple):
    success: bool
    actions: int


async def play(page: str, seed: int) -> Result:
    env = Web(Task(id=f"{page}-{seed}", seed=seed, data={"page": page, "mode": "test"}))
    try:
        await env.start()
        for turn in range(1, Web.max_turns + 1):
            reply = await env.expert()
            if reply is None:
                return Result(False, turn - 1)
            seen = await env.step(reply)
            if seen.done:
                return Result(bool(seen.success), turn)
        return Result(False, Web.max_turns)
    finally:
        await env.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--pages", nargs="*", default=sorted(EXPERTS))
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    results: dict[str, list[Result]] = defaultdict(list)
    turns, begin, redone = asyncio.Semaphore(options.at_once), time.perf_counter(), 0

    async def one(page: str, seed: int) -> None:
        nonlocal redone
        async with turns:
            for _ in range(5):
                try:
                    results[page].append(await play(page, seed))
                    break
                except EnvironmentFailedError as error:
                    redone += 1
                    print(f"{page} {seed}: {error}", flush=True)
        if len(results[page]) == options.seeds:
            print(row(page, results[page]), flush=True)

    seeds = [2 * SEEDS_PER_SPLIT + number for number in range(options.seeds)]
    await asyncio.gather(*(one(page, seed) for page in options.pages for seed in seeds))
    browser = (await (await Pool.here().take()).browser.connection.call("Browser.getVersion"))["product"]
    await Web.shutdown()
    good = [page for page in options.pages if rate(results[page]) >= 0.99]
    rest = [page for page in options.pages if page not in good]
    head = "| page | successes | actions, mean |\n|---|---|---|"
    text = "\n".join([
        f"{len(options.pages)} pages, {options.seeds} seeds each, {time.perf_counter() - begin:.0f} s; "
        f"{redone} episodes played again after the browser failed",
        f"Python {platform.python_version()}, miniwob {version('miniwob')}, {browser}, {platform.machine()}, "
        f"{time.strftime('%F')}",
        "",
        f"{len(good)} pages at 99% or more:", "", head, *(row(page, results[page]) for page in good),
        *(["", f"{len(rest)} below:", "", head, *(row(page, results[page]) for page in rest)] if rest else []),
    ])  # fmt: skip
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


def rate(results: list[Result]) -> float:
    return sum(result.success for result in results) / len(results)


def row(page: str, results: list[Result]) -> str:
    actions = sum(result.actions for result in results) / len(results)
    return f"| {page} | {sum(result.success for result in results)}/{len(results)} | {actions:.1f} |"


if __name__ == "__main__":
    asyncio.run(main())
