"""The pages that no expert plays, tried: what a text agent sees there and what the best simple script gets.

    python benchmarks/web_pages.py [--seeds 10]

For each page the right answers are compared with what is shown (two problems that look
alike but want different answers cannot be told apart), or the best reward of a script that
does what it can with the actions there are.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Awaitable, Callable

from bough.environments.base import Observation
from bough.environments.web.environment import Web
from bough.types import Task


async def attempt(
    page: str, seed: int, choose: Callable[[Web, int], str | None], turns: int = 40
) -> tuple[str, float | None]:
    """What was shown first, and the reward at the end (None if there was no end)."""
    env = Web(Task(id=f"{page}-{seed}", seed=seed, data={"page": page}))
    try:
        start: Observation = await env.start()
        for turn in range(turns):
            action = choose(env, turn)
            if action is None:
                break
            seen = await env.step(action)
            if seen.done:
                return start.text, seen.reward
        return start.text, None
    finally:
        await env.close()


def numbers(env: Web, kind: str) -> list[int]:
    assert env.view is not None
    return [line.number for line in env.view.lines if line.kind == kind]


async def count_sides(seeds: range) -> str:
    """The button that wins, by trying all five on every problem."""
    answers: dict[str, set[int]] = {}
    for seed in seeds:
        for button in range(2, 7):
            shown, reward = await attempt("count-sides", seed, lambda _env, _turn, b=button: f"click('{b}')")
            if reward == 1:
                answers.setdefault(shown, set()).add(button)
    return f"{len(answers)} different texts; the most right buttons for one text: {max(map(len, answers.values()))}"


async def simon_says(seeds: range) -> str:
    """Three presses of the first button win where the sequence is just that; the text tells nothing."""
    shown = {
        (await attempt("simon-says", seed, lambda _env, turn: "wait()" if turn < 3 else None))[0] for seed in seeds
    }
    rewards = [(await attempt("simon-says", seed, lambda _env, _turn: "click('1')", 6))[1] for seed in seeds]
    wins = rewards.count(1.0)
    return f"{len(shown)} text for {len(seeds)} problems; pressing the first button wins {wins}"


async def drag_cube(seeds: range) -> str:
    texts = set()

    def choose(env: Web, turn: int) -> str | None:
        texts.add(env._shown())
        return f"mouse_drag(80, 110, {80 + 30 * (turn - 3)}, 125)" if turn < 6 else None

    for seed in seeds:
        await attempt("drag-cube", seed, choose)
    return f"{len(texts)} text whatever is dragged"


async def draw_circle(seeds: range) -> str:
    """The best of straight strokes around the mark."""
    best = []
    for seed in seeds:
        rewards = []
        for angle in range(0, 360, 60):

            def choose(env: Web, turn: int, angle: int = angle) -> str | None:
                assert env.view is not None
                if turn:
                    return f"click('{numbers(env, 'button')[0]}')"
                mark = next(line.facts for line in env.view.lines if line.kind == "circle")
                x, y = mark["x"] + 25 * math.cos(angle), mark["y"] + 25 * math.sin(angle)
                return f"mouse_drag({x:.0f}, {y:.0f}, {2 * mark['x'] - x + 12:.0f}, {2 * mark['y'] - y:.0f})"

            rewards.append((await attempt("draw-circle", seed, choose, 3))[1] or -1.0)
        best.append(max(rewards))
    return f"best reward {max(best):.2f}"


def follower(kind: str, action: str) -> Callable[[range, str], Awaitable[str]]:
    """Always goes for the first (or the only lit) shape."""

    async def run(seeds: range, page: str) -> str:
        def choose(env: Web, _turn: int) -> str | None:
            assert env.view is not None
            inside = [line for line in env.view.lines if line.kind == kind and 0 <= line.facts["x"] <= 160]
            return f"{action}('{inside[0].number}')" if inside else "wait()"

        rewards = [(await attempt(page, seed, choose))[1] for seed in seeds]
        ended = [reward for reward in rewards if reward is not None]
        return f"best reward {max(ended):.2f}" if ended else "no end after 40 actions"

    return run


async def number_checkboxes(seeds: range) -> str:
    """One problem per digit: whether anything but the digit's name tells them apart."""
    shown = {(await attempt("number-checkboxes", seed, lambda _env, _turn: None))[0] for seed in seeds}
    bodies = {text.partition("when finished.")[2] for text in shown}
    return f"{len(bodies)} text below {len(shown)} goals; the drawing is a picture"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    seeds = range(parser.parse_args().seeds)
    print("| page | what came of it |\n|---|---|")
    print(f"| count-sides | {await count_sides(seeds)} |", flush=True)
    print(f"| simon-says | {await simon_says(seeds)} |", flush=True)
    print(f"| drag-cube | {await drag_cube(seeds)} |", flush=True)
    print(f"| draw-circle | {await draw_circle(seeds)} |", flush=True)
    print(f"| number-checkboxes | {await number_checkboxes(seeds)} |", flush=True)
    for page, kind, action in (
        ("chase-circle", "circle", "hover"), ("hover-shape", "rect", "hover"), ("moving-items", "circle", "click"),
    ):  # fmt: skip
        print(f"| {page} | {await follower(kind, action)(seeds, page)} |", flush=True)
    await Web.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
