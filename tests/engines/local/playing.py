"""Small engines, and episodes that are played with them."""

import asyncio
import random
from typing import Any

from bough.config.groups import SamplingConfig
from bough.engines.base import Generated
from bough.engines.local.engine import LocalEngine
from bough.policy.policy import Policy

Answers = dict[str, list[Generated]]


def small_engine(policy: Policy, **options: Any) -> LocalEngine:
    return LocalEngine.of(policy, **{"threads": 1, "max_tokens": 40_000} | options)


def prompt(name: str, length: int, vocabulary: int = 200) -> list[int]:
    """Made-up tokens that depend on the name alone."""
    generator = random.Random(name)
    return [generator.randrange(3, vocabulary) for _ in range(length)]


async def play(engine: LocalEngine, name: str, turns: int, sampling: SamplingConfig, start: list[int]) -> list[Any]:
    """An episode: after each answer something is observed. Gives (prompt, answer) of each turn."""
    ids, calls = [*start, *prompt(name, 7)], []
    for turn in range(turns):
        drawn = await engine.generate(name, ids, sampling=sampling, seed=hash_of(name) + turn, stop_ids=[2])
        calls.append((ids, drawn))
        ids = ids + drawn.completion_ids + prompt(f"{name}/{turn}", 5 + turn)
    return calls


def hash_of(name: str) -> int:
    return random.Random(name).getrandbits(40)


def run(engine: LocalEngine, *plays: Any) -> list[Any]:
    """Everything at once; the engine is closed afterwards."""

    async def all_of_them() -> list[Any]:
        try:
            return list(await asyncio.gather(*plays))
        finally:
            await engine.close()

    return asyncio.run(all_of_them())
