"""Household: how fast games are played and made, and how often the expert wins them.

    python benchmarks/household.py [--games FOLDER] [--output benchmarks/results/household.md]

Seconds are those that the one thread of this process computed. A step includes the text,
the sorted admissible commands and the check whether the game is won; through the
environment also the parsing of the reply, the progress and the observation.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from bough.worlds.household.engine import GameEngine
from bough.worlds.household.environment import Household
from bough.worlds.household.expert import Expert, Memory
from bough.worlds.household.game import FILE_NAME, KINDS, Game, read
from bough.worlds.household.generate import SPLITS, generated


def engine_steps(games: list[Game], steps: int) -> Iterator[float]:
    """Milliseconds of single steps, the commands drawn from the admissible ones."""
    rng = random.Random(0)
    for game in games:
        engine = GameEngine(game)
        for _ in range(steps):
            command = rng.choice(engine.admissible)
            begin = time.process_time()
            engine.step(command)
            _ = engine.admissible, engine.won
            yield 1e3 * (time.process_time() - begin)


def environment_steps(count: int, steps: int) -> Iterator[float]:
    """The same through the environment, with the admissible commands in every observation."""

    async def play() -> list[float]:
        rng, taken = random.Random(0), []
        for task in islice(Household.tasks(Household.Options(admissible=True)), count):
            world = Household(task)
            await world.start()
            for _ in range(steps):
                reply = world.say(rng.choice(world.choices()), "Let us see.")
                begin = time.process_time()
                await world.step(reply)
                taken.append(1e3 * (time.process_time() - begin))
        return taken

    yield from asyncio.run(play())


def solve(game: Game, limit: int = 200) -> int | None:
    """The turns that the expert needs."""
    engine = GameEngine(game)
    memory = Memory(engine.world)
    for turn in range(limit):
        if engine.won:
            return turn
        move = Expert(memory).next()
        if move is None:
            return None
        _, action = engine.step(move.command)
        memory.refused(move.command) if action is None else memory.note(action)
    return None


def seconds(do: Callable[[], object]) -> float:
    begin = time.process_time()
    do()
    return time.process_time() - begin


def resident_mb() -> float:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    assert found
    return int(found[1]) / 1024


def live(count: int) -> float:
    """Megabytes for each of many episodes that are played at the same time."""
    tasks = list(islice(Household.tasks(Household.Options()), count))
    before = resident_mb()
    worlds = [Household(task) for task in tasks]
    for world in worlds:
        asyncio.run(world.start())
    return (resident_mb() - before) / len(worlds)


def row(name: str, taken: list[float]) -> str:
    slowest = statistics.quantiles(taken, n=1000)[-1]
    return f"| {name} | {1e3 / statistics.fmean(taken):,.0f} | {statistics.fmean(taken):.3f} | {slowest:.2f} |"


def expert_row(name: str, games: list[Game]) -> str:
    begin = time.process_time()
    turns = [solve(game) for game in games]
    rate = len(games) / (time.process_time() - begin)
    won = sorted(turn for turn in turns if turn is not None)
    within = [sum(turn <= limit for turn in won) for limit in (35, 50)]
    return (
        f"| {name} | {len(games)} | {len(won)} | {within[0]} | {within[1]} "
        f"| {statistics.fmean(won):.1f} | {won[-1]} | {rate:,.0f} |"
    )


def report(folder: Path | None, count: int) -> Iterator[str]:
    yield f"Python {platform.python_version()}, {platform.machine()}, one thread, {time.strftime('%Y-%m-%d')}\n"
    made: dict[str, list[Game]] = {}
    begin = time.process_time()
    for split in SPLITS:
        made[split] = [game for _, game in islice(generated(KINDS, split, 0), count)]
    making = time.process_time() - begin
    paths = sorted(folder.rglob(FILE_NAME)) if folder else []
    yield "| steps | steps/s | mean ms | 99.9% ms |\n|---|---|---|---|"
    yield row("engine, generated games", list(engine_steps(made["train"][:100], 50)))
    if paths:
        reading = seconds(lambda: made.update(official=[read(path) for path in paths]))
        yield row("engine, official games", list(engine_steps(made["official"], 50)))
    yield row("environment, generated games", list(environment_steps(100, 50)))
    yield "\n| games | ms each |\n|---|---|"
    yield f"| generate one | {1e3 * making / (count * len(SPLITS)):.2f} |"
    if paths:
        yield f"| read an official file | {1e3 * reading / len(paths):.2f} |"
    data = [game.to_data() for game in made["train"][:200]]
    starting = seconds(lambda: [GameEngine(Game.from_data(d)) for d in data])
    yield f"| start one from a task | {1e3 * starting / len(data):.2f} |"
    yield f"\n2,000 episodes at once take {1e3 * live(2000):.0f} kB each.\n"
    yield "| games | played | won | within 35 turns | within 50 | mean turns | most | games/s |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, games in made.items():
        yield expert_row(name, games)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=Path, help="a folder of official games")
    parser.add_argument("--count", type=int, default=1000, help="generated games of each split")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "household.md")
    arguments = parser.parse_args()
    lines = []
    for line in report(arguments.games, arguments.count):
        print(line, flush=True)
        lines.append(line)
    arguments.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
