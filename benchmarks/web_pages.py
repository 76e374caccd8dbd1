"""Which pages a text agent can solve, tried on every one of them.

    python benchmarks/web_pages.py [--seeds 10] [--pages …] [--output FILE]

On a page that counts as solvable the scripted expert plays, which reads the goal and the
text alone: how often it won is the proof. On a page that does not, whatever a script could
do there is done, and what came of it is written down.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path

from bough.environments.base import EnvironmentFailedError
from bough.types import Task
from bough.worlds.web.environment import EXPERTS, Web
from bough.worlds.web.page import NOT_FOR_TEXT, Pool, all_pages, text_pages

Choose = Callable[[Web], Awaitable[str | None]]


async def attempt(page: str, seed: int, choose: Choose, turns: int = Web.max_turns) -> tuple[str, float | None, bool]:
    """What was shown first, the reward at the end (None if there was no end) and whether that was a success."""
    for tries in range(5):
        env = Web(Task(id=f"{page}-{seed}", seed=seed, data={"page": page}))
        try:
            shown = (await env.start()).text
            for _ in range(turns):
                reply = await choose(env)
                if reply is None:
                    break
                seen = await env.step(reply)
                if seen.done:
                    return shown, seen.reward, bool(seen.success)
            return shown, None, False
        except EnvironmentFailedError:
            if tries == 4:
                raise
        finally:
            await env.close()
    raise AssertionError


async def by_expert(page: str, seeds: range) -> int:
    """On how many seeds the page's script wins."""
    results = [await attempt(page, seed, Web.expert) for seed in seeds]
    return sum(success for _, _, success in results)


async def count_sides(seeds: range) -> str:
    """Every button on every problem: whether the text tells which one is right."""
    answers: dict[str, set[int]] = {}
    for seed in seeds:
        for button in range(2, 7):

            async def press(_env: Web, button: int = button) -> str | None:
                return f"click('{button}')"

            shown, _, success = await attempt("count-sides", seed, press, 1)
            if success:
                answers.setdefault(shown, set()).add(button)
    most = max(map(len, answers.values()))
    return f"all 5 buttons pressed on each problem: {len(answers)} text, for which {most} different buttons were right"


async def hover_shape(seeds: range) -> str:
    """The mouse on the coloured square at every turn."""

    async def hover(env: Web) -> str | None:
        assert env.view is not None
        return f"hover('{next(line.number for line in env.view.lines if line.facts.get('id') == 'highlight')}')"

    results = [await attempt("hover-shape", seed, hover) for seed in seeds]
    ended = sum(reward is not None for _, reward, _ in results)
    return (
        f"the coloured square hovered over at each of {Web.max_turns} turns: {ended} of {len(results)} episodes ended"
    )


TRIALS: dict[str, Callable[[range], Awaitable[str]]] = {
    "count-sides": count_sides,
    "hover-shape": hover_shape,
}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--pages", nargs="*", default=list(all_pages()))
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    seeds, begin, turns = range(options.seeds), time.perf_counter(), asyncio.Semaphore(options.at_once)
    rows: dict[str, str] = {}

    async def one(page: str) -> None:
        async with turns:
            if page in NOT_FOR_TEXT:
                rows[page] = f"| {page} | {NOT_FOR_TEXT[page]} | {await TRIALS[page](seeds)} |"
            elif page in EXPERTS:
                module = EXPERTS[page].__module__.rpartition(".")[2]
                rows[page] = (
                    f"| {page} | {module}.{EXPERTS[page].__name__} | {await by_expert(page, seeds)}/{len(seeds)} |"
                )
            else:
                rows[page] = f"| {page} | none: it has no expert | |"
            print(rows[page], flush=True)

    await asyncio.gather(*(one(page) for page in options.pages))
    browser = (await (await Pool.here().take()).browser.connection.call("Browser.getVersion"))["product"]
    await Web.shutdown()
    solvable = [page for page in text_pages() if page in rows]
    rest = [page for page in NOT_FOR_TEXT if page in rows]
    text = "\n".join([
        f"{len(rows)} pages, {len(seeds)} seeds each, {time.perf_counter() - begin:.0f} s",
        f"miniwob {version('miniwob')}, {browser}, {platform.machine()}, {time.strftime('%F')}",
        "", f"{len(rest)} pages that goal and text are not enough for:", "",
        "| page | why | what was tried, and what came of it |", "|---|---|---|", *(rows[page] for page in rest),
        "", f"{len(solvable)} pages that they are enough for:", "",
        "| page | script | won |", "|---|---|---|", *(rows[page] for page in solvable),
    ])  # fmt: skip
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    asyncio.run(main())
