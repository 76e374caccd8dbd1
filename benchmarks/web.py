"""Episodes a second on login-user: Bough's web environment against miniwob's own Selenium environment.

    python benchmarks/web.py [--episodes 40] [--rounds 3] [--at-once 8]

Both play the same seeds with the same three actions (user name, password, button) and must
win every episode. Rounds of the contenders are interleaved in one run, so that whatever
else the machine does falls on all of them. Selenium drives one page per browser, one
action after the other; with screenshots (its default) and without. Needs chromium-driver.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from bough.types import Task
from bough.worlds.web.environment import Web
from bough.worlds.web.page import Pool

PAGE = "login-user"


class Selenium:
    """miniwob's gymnasium environment, driven as its documentation does."""

    def __init__(self, screenshots: bool) -> None:
        import gymnasium
        import miniwob
        from miniwob.action import ActionTypes

        gymnasium.register_envs(miniwob)
        self.types, self.screenshots = ActionTypes, screenshots
        self.env: Any = gymnasium.make(f"miniwob/{PAGE}-v1")

    def play(self, seeds: range) -> None:
        for seed in seeds:
            seen, _ = self.env.reset(seed=seed, options={"record_screenshots": self.screenshots})
            fields = dict(seen["fields"])
            for tag, text in (("input_text", fields["username"]), ("input_password", fields["password"])):
                target = next(element for element in seen["dom_elements"] if element["tag"] == tag)
                seen, *_ = self._act(self.types.FOCUS_ELEMENT_AND_TYPE_TEXT, ref=target["ref"], text=text)
            button = next(element for element in seen["dom_elements"] if element["tag"] == "button")
            _, reward, done, *_ = self._act(self.types.CLICK_ELEMENT, ref=button["ref"])
            assert done and reward > 0, (seed, reward)

    def _act(self, kind: Any, **values: Any) -> Any:
        return self.env.step(self.env.unwrapped.create_action(kind, **values))

    def close(self) -> None:
        self.env.close()


class Ours:
    """Bough's environment with the expert's replies, some episodes at once."""

    def __init__(self, at_once: int) -> None:
        self.at_once, self.loop = at_once, asyncio.new_event_loop()

    def play(self, seeds: range) -> None:
        self.loop.run_until_complete(self._play(seeds))

    async def _play(self, seeds: range) -> None:
        turns = asyncio.Semaphore(self.at_once)

        async def one(seed: int) -> None:
            async with turns:
                env = Web(Task(id=str(seed), seed=seed, data={"page": PAGE}))
                await env.start()
                while True:
                    reply = await env.expert()
                    assert reply is not None
                    seen = await env.step(reply)
                    if seen.done:
                        break
                await env.close()
                assert seen.success, seed

        await asyncio.gather(*(one(seed) for seed in seeds))

    def close(self) -> None:
        async def product() -> str:
            page = await Pool.here().take()
            answer = await page.browser.connection.call("Browser.getVersion")
            await Web.shutdown()
            return str(answer["product"])

        self.browser = self.loop.run_until_complete(product())


def cpu_s() -> float:
    """Seconds that this process and all it started have computed."""
    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        try:
            times = process.cpu_times()
            total += times.user + times.system
        except psutil.Error:
            continue
    return total


def timed(play: Callable[[range], None], seeds: range) -> tuple[float, float]:
    cpu, begin = cpu_s(), time.perf_counter()
    play(seeds)
    return len(seeds) / (time.perf_counter() - begin), 1000 * (cpu_s() - cpu) / len(seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    contenders: dict[str, Selenium | Ours] = {
        "miniwob's Selenium": Selenium(True),
        "the same, screenshots off": Selenium(False),
        "bough, one at a time": Ours(1),
        f"bough, {options.at_once} at once": Ours(options.at_once),
    }
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for number in range(-1, options.rounds):  # the first round warms up
        for name, contender in contenders.items():
            # Selenium is slower by an order of magnitude; its rounds last as long with fewer episodes.
            count = options.episodes // 4 if isinstance(contender, Selenium) else options.episodes
            measured = timed(contender.play, range(1000 * (number + 2), 1000 * (number + 2) + max(count, 5)))
            if number >= 0:
                rates[name].append(measured)
                print(f"round {number}: {name}: {measured[0]:.1f} episodes/s", flush=True)
    for contender in contenders.values():
        contender.close()
    browser = next(c.browser for c in contenders.values() if isinstance(c, Ours))
    means = {name: statistics.median(rate for rate, _ in rows) for name, rows in rates.items()}
    first, second = (means[name] for name in list(means)[:2])
    lines = [
        f"{PAGE}, 3 actions an episode, {options.rounds} interleaved rounds, medians",
        f"{platform.machine()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.0f}; "
        f"Python {platform.python_version()}, "
        f"miniwob {version('miniwob')}, selenium {version('selenium')}, {browser}; {time.strftime('%F')}",
        "",
        "| driver | episodes/s | CPU-ms/episode | × Selenium | × without screenshots |",
        "|---|---|---|---|---|",
    ]
    for name, rows in rates.items():
        cpu = statistics.median(ms for _, ms in rows)
        lines.append(
            f"| {name} | {means[name]:.2f} | {cpu:.0f} | {means[name] / first:.1f} | {means[name] / second:.1f} |"
        )
    print("\n".join(lines))
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
