"""Model servers and checkpoints as enemies: the cases of the tests, and as many damaged ones from a seed.

    python -m benchmarks.hostile.answers

A server's answer costs its own episode at most; a damaged checkpoint is refused with a sentence
before anything is loaded, and with digests that fit the damage it is refused or is what it says.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.hostile.mutations import change, flip
from benchmarks.hostile.trials import main

DAMAGED = 200
HONEST = {
    "model": "tiny",
    "choices": [
        {
            "message": {"role": "assistant", "content": "1", "tool_calls": [], "reasoning": "so"},
            "finish_reason": "stop",
            "token_ids": [4, 5],
            "logprobs": {"content": [{"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -0.5}]},
        }
    ],
    "prompt_token_ids": [1, 2],
    "usage": {"prompt_tokens": 2, "completion_tokens": 2},
}


def answers(replies: list[Any]) -> str:
    """Every reply in an episode of its own, two honest episodes beside each."""
    from tests.engines.stand_in import said, serving
    from tests.engines.test_hostile_servers import TASKS
    from tests.environments.worlds import Counting

    from bough.config.groups import LimitsConfig
    from bough.engines import http
    from bough.engines.http import ServerLimits
    from bough.engines.openai import OpenAIEngine
    from bough.rollouts.collect import LocalRunner, attempts, collect
    from bough.rollouts.episode import ModelAgent
    from bough.types import Trajectory

    http.MAX_BODY = 4 << 20  # the bodies without an end have 5 MB
    ends: Counter[str] = Counter()
    for number, reply in enumerate(replies):
        kept: dict[str, Trajectory] = {}

        async def play(url: str, kept: dict[str, Trajectory]) -> Any:
            limits = ServerLimits(retries=0, backoff_s=0.001, timeout_s=20)
            agent = ModelAgent(OpenAIEngine(url, "tiny", limits=limits))
            try:
                return await collect(
                    LocalRunner.of(Counting, agent, LimitsConfig(max_turns=3)),
                    attempts(TASKS, 1, 0),
                    lambda one, _: kept.update({one.id: one}),
                    retries=0,
                )
            finally:
                await agent.close()

        def answer(body: dict[str, Any], reply: Any = reply) -> Any:
            return reply if "To 2." in str(body["messages"]) else said("1")

        with serving(answer) as server:
            tally = asyncio.run(play(server.url, kept))
        json.dumps(tally.to_json(), ensure_ascii=False).encode()
        if {"good-0#0", "good-1#0"} - {id for id in kept if kept[id].success}:
            return f"BROKEN: answer {number} cost an honest episode: {tally.lost}"
        for record in kept.values():
            record.model_dump_json()
        ends["lost" if "bad#0" in tally.lost else "kept"] += 1
    return f"held: {len(replies)} answers: " + ", ".join(f"{count} {word}" for word, count in ends.items())


def of_the_tests() -> str:
    from tests.engines.test_hostile_servers import ANSWERS

    return answers([one() if callable(one) else one for one in ANSWERS.values()])


def changed() -> str:
    from tests.engines.stand_in import Reply

    rng = Random(0)
    return answers([Reply(change(HONEST, rng)) for _ in range(DAMAGED)])


def flipped() -> str:
    from tests.engines.stand_in import Reply

    rng = Random(1)
    return answers([Reply(flip(json.dumps(HONEST).encode(), rng)) for _ in range(DAMAGED)])


def checkpoints(fitting: bool, cases: list[tuple[str, Callable[[Path], Any]]]) -> str:
    """Each damage to a checkpoint of its own; with `fitting`, the list of digests is written again."""
    from tests.training.test_checkpoint import fresh, trained

    from bough.errors import InputError
    from bough.files import write_json
    from bough.models.resolve import file_digest
    from bough.training import checkpoint

    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        trained(2, folder=Path(name) / "saved")
        for number, (file, damage) in enumerate(cases):
            folder = Path(name) / str(number)
            shutil.copytree(Path(name) / "saved", folder)
            newest = checkpoint.checkpoints(folder)[-1]
            path = newest.path / file
            before = path.read_bytes()
            damage(path)
            # The list of digests may have more in it than is read.
            harmless = file == "files.json" or (path.is_file() and path.read_bytes() == before)
            if fitting and path.is_file() and file != "files.json":
                listed = json.loads((newest.path / "files.json").read_text())
                listed[file] = {"bytes": path.stat().st_size, "sha256": file_digest(path)}
                write_json(newest.path / "files.json", listed)
            try:
                newest.check()
                newest.restore(fresh())
                ends["restored"] += 1
                if not fitting and not harmless:
                    return f"BROKEN: damage {number} to {file} was not found"
            except InputError:
                ends["refused"] += 1
            shutil.rmtree(folder)
    return f"held: {len(cases)} checkpoints: " + ", ".join(f"{count} {word}" for word, count in ends.items())


def of_the_checkpoint_tests() -> str:
    from tests.training.test_checkpoint import DAMAGES, INSIDE

    return checkpoints(False, [*DAMAGES, *INSIDE.values()])


def seeded(fitting: bool) -> str:
    from tests.training.test_checkpoint import FILES

    rng = Random(2)

    def damage(path: Path) -> None:
        content = path.read_bytes()
        if path.suffix == ".json" and rng.random() < 0.5:
            path.write_bytes(json.dumps(change(json.loads(content), rng)).encode())
        else:
            path.write_bytes(flip(content, rng))

    return checkpoints(fitting, [(rng.choice(FILES), damage) for _ in range(DAMAGED)])


CASES: dict[str, Callable[[], str]] = {
    "servers: the answers of the tests": of_the_tests,
    "servers: an honest answer with parts changed": changed,
    "servers: an honest answer with bytes changed": flipped,
    "checkpoints: the damages of the tests": of_the_checkpoint_tests,
    "checkpoints: bytes or values changed": lambda: seeded(False),
    "checkpoints: the same, with digests that fit": lambda: seeded(True),
}

if __name__ == "__main__":
    sys.exit(main("answers", __doc__, CASES))
