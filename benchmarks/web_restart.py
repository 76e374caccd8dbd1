"""Which pages can start their next problem without being loaded anew.

    python benchmarks/web_restart.py [--seeds 20] [--pages …] [--output FILE]

Each seed is played by the expert, at random, or a little at random and then by the expert,
in turn: on a page freshly loaded, and on one on which all seeds before were played. Where
everything shown and paid is the same, nothing is carried over. Where it is not, the seed is
played on two more fresh pages: if even those differ, the page is not deterministic by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import random
import re
import time
from importlib.metadata import version
from pathlib import Path

from bough.types import Task
from bough.worlds.web import page as page_module
from bough.worlds.web.environment import Web
from bough.worlds.web.page import RELOADED, Page, Pool, View, all_pages, html_folder

TURNS = 12
# Who decides at a turn: the expert wins and leaves a finished page, chance leaves it in any state.
STYLES = ("expert", "random", "mixed")


async def play(page: Page, name: str, seed: int, style: str) -> list[object]:
    """Everything that an episode shows."""
    env = Web(Task(id=f"{name}-{seed}", seed=seed, data={"page": name}))
    env._page, env.view = page, await page.start(name, seed, "train")
    seen: list[object] = [env.view]
    rng = random.Random(f"{name} {seed}")
    for turn in range(TURNS):
        by_expert = style == "expert" or (style == "mixed" and turn >= 2)
        reply = await env.expert() if by_expert else None
        choices = env.choices()
        if reply is None and not choices:
            break
        answer = await env.step(reply or env.say(rng.choice(choices)))
        seen += [env.view, answer.text, answer.reward, answer.error]
        if answer.done:
            break
    return seen


async def fresh(name: str, seed: int, style: str) -> list[object]:
    pool = Pool.here()
    page = await pool.take()
    page.name = ""  # so that it is loaded anew
    try:
        return await play(page, name, seed, style)
    finally:
        await pool.give_back(page, sound=True)


async def verdict(name: str, seeds: int) -> tuple[str, str]:
    """What becomes of a page that is used again: "clean", "carries" or "chance"; and where that was seen."""
    pool = Pool.here()
    kept = await Page.open((await pool.take()).browser)
    try:
        for number in range(seeds):
            seed, style = 1000 + number, STYLES[number % len(STYLES)]
            alone, after = await fresh(name, seed, style), await play(kept, name, seed, style)
            if alone != after:
                again = [await fresh(name, seed, style) for _ in range(2)]
                same = all(other == alone for other in again)
                return ("carries" if same else "chance"), f"problem {number + 1}, {difference(alone, after)}"
        return "clean", ""
    finally:
        await kept.close()


def difference(one: list[object], other: list[object]) -> str:
    """The first thing that is not the same, in a few words."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a == b:
            continue
        turn = f"turn {(place + 3) // 4}"
        if isinstance(a, View) and isinstance(b, View):
            if a.goal != b.goal:
                return f"{turn}: the goal"
            lines = [x for x, y in zip(a.lines, b.lines, strict=False) if x != y]
            return f"{turn}: {lines[0].kind or 'text'} {lines[0].name!r}"[:60] if lines else f"{turn}: what is shown"
        return f"{turn}: {a!r} against {b!r}"[:80]
    return "the number of turns"


def not_deterministic() -> set[str]:
    """The pages of which miniwob's own registration says so."""
    text = (Path(html_folder()).parents[1] / "registration.py").read_text()
    entries = re.findall(r'id="miniwob/([\w-]+)-v1",(.*?)\n    \)', text, re.DOTALL)
    return {name for name, rest in entries if "nondeterministic=True" in rest}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--pages", nargs="*", default=list(all_pages()))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    page_module.RELOADED = frozenset()  # type: ignore[misc]  # nothing is loaded anew unless this script says so
    turns, begin = asyncio.Semaphore(4), time.perf_counter()
    found: dict[str, tuple[str, str]] = {}

    async def one(name: str) -> None:
        async with turns:
            found[name] = await verdict(name, options.seeds)
            print(name, *found[name], flush=True)

    await asyncio.gather(*(one(name) for name in options.pages))
    browser = (await (await Pool.here().take()).browser.connection.call("Browser.getVersion"))["product"]
    await Web.shutdown()
    unclean = {name: (what, where) for name, (what, where) in sorted(found.items()) if what != "clean"}
    words = {"carries": "carries something over", "chance": "is not the same even when loaded anew"}
    text = "\n".join([
        f"{len(found)} pages, {options.seeds} problems one after the other on each, against the same on fresh pages; "
        f"{time.perf_counter() - begin:.0f} s",
        f"miniwob {version('miniwob')}, {browser}, {platform.machine()}, {time.strftime('%F')}",
        "",
        f"{len(found) - len(unclean)} pages carry nothing over. The others:", "",
        "| page | what | first seen |", "|---|---|---|",
        *(f"| {name} | {words[what]} | {where.replace('|', '/')} |" for name, (what, where) in unclean.items()), "",
        "In `RELOADED` but clean here: " + (", ".join(sorted(RELOADED & set(found) - set(unclean))) or "none"), "",
        "Missing from `RELOADED`: " + (", ".join(sorted(set(unclean) - RELOADED)) or "none"), "",
        "Not deterministic by miniwob's own word: " + ", ".join(sorted(not_deterministic() & set(found))),
    ])  # fmt: skip
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    asyncio.run(main())
