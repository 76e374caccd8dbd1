"""Which pages can start their next problem without being loaded anew.

    python benchmarks/web_restart.py [--seeds 10] [--pages …]

Each seed is played twice, by the expert or at random: on a page freshly loaded, and on one
on which all seeds before were played. Where everything shown and paid is the same, nothing
is carried over. Pages that miniwob registers as not deterministic are reported beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
from pathlib import Path

from bough.environments.web import page as page_module
from bough.environments.web.environment import Web
from bough.environments.web.page import Page
from bough.environments.web.pages import RELOADED, all_pages, html_folder
from bough.environments.web.pool import Pool
from bough.types import Task

TURNS = 12


async def play(page: Page, name: str, seed: int, by_expert: bool) -> list[object]:
    """Everything that an episode shows."""
    env = Web(Task(id=f"{name}-{seed}", seed=seed, data={"page": name}))
    env._page, env.view = page, await page.start(name, seed, "train")
    seen: list[object] = [env.view]
    chance = random.Random(f"{name} {seed}")
    for _ in range(TURNS):
        reply = await env.expert() if by_expert else None
        choices = env.choices()
        if reply is None and not choices:
            break
        answer = await env.step(reply or env.say(chance.choice(choices)))
        seen += [env.view, answer.text, answer.reward, answer.error]
        if answer.done:
            break
    return seen


async def carries_state(name: str, seeds: int) -> bool:
    pool = Pool.here()
    fresh, kept = await pool.take(), await pool.take()
    try:
        for number in range(seeds):
            fresh.name = ""  # so that it is loaded anew
            by_expert = number % 2 == 0
            if await play(fresh, name, 1000 + number, by_expert) != await play(kept, name, 1000 + number, by_expert):
                return True
        return False
    finally:
        await pool.give_back(fresh, sound=False)
        await pool.give_back(kept, sound=False)


def not_deterministic() -> set[str]:
    """The pages of which miniwob's own registration says so."""
    text = (Path(html_folder()).parents[1] / "registration.py").read_text()
    entries = re.findall(r'id="miniwob/([\w-]+)-v1",(.*?)\n    \)', text, re.DOTALL)
    return {name for name, rest in entries if "nondeterministic=True" in rest}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--pages", nargs="*", default=list(all_pages()))
    options = parser.parse_args()
    page_module.RELOADED = frozenset()  # type: ignore[misc]  # nothing is loaded anew unless this script says so
    turns, carrying = asyncio.Semaphore(4), set()

    async def one(name: str) -> None:
        async with turns:
            if await carries_state(name, options.seeds):
                carrying.add(name)
                print(f"{name} carries something over", flush=True)

    await asyncio.gather(*(one(name) for name in options.pages))
    await Web.shutdown()
    print("carry something over:", *sorted(carrying))
    print("not deterministic by miniwob's word:", *sorted(not_deterministic() & set(options.pages)))
    print(
        "to be loaded anew, but not in the list:",
        *sorted((carrying | not_deterministic()) & set(options.pages) - RELOADED),
    )


if __name__ == "__main__":
    asyncio.run(main())
