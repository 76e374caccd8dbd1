"""Seconds per batch of online GRPO at several limits of staleness, in an environment whose steps take their time.

    python benchmarks/streaming.py [--staleness 0 1 2] [--batches 12] [--output FILE]

A step takes 0.6 s on average, some of them many times that, as pages and test suites do;
the model (`tiny`) takes next to nothing. So the table shows how much of the waiting is
hidden, not how fast the engine is.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bough.config.run_folder import MetricsFile
from bough.environments.base import Environment, Observation
from bough.methods.grpo import GRPOConfig, train_grpo
from bough.types import Task

BATCH, GROUP, TURNS = 4, 4, 4


class Waiting(Environment):
    """Write e as often as you can, four times; every step waits."""

    name = "waiting"
    max_turns = TURNS

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:  # noqa: ARG003
        for number in range(1000):
            yield Task(id=f"{split}-{seed}-{number}", data={"number": number})

    async def start(self) -> Observation:
        self.shares: list[float] = []
        return Observation.say(f"Task {self.task.data['number']}: write e.")

    async def step(self, reply: str) -> Observation:
        await asyncio.sleep(random.lognormvariate(-1.2, 1.2))  # mean 0.6 s, one in a hundred above 5 s
        self.shares.append(reply.count("e") / max(1, len(reply)))
        if len(self.shares) < TURNS:
            return Observation.say("Again.")
        reward = sum(self.shares) / TURNS
        return Observation.end(success=reward > 0.2, reward=reward)


def measure(staleness: int, batches: int, folder: Path) -> str:
    """One run, as a row of the table."""
    random.seed(1)
    config = GRPOConfig(
        model="tiny", environment="benchmarks.streaming:Waiting", output_dir=folder, max_steps=batches,
        batch_size=BATCH, group_size=GROUP, max_new_tokens=8, learning_rate=1e-3, concurrency=2 * BATCH * GROUP,
        max_staleness=staleness, logging_steps=1, save_steps=batches, watch=False,
    )  # fmt: skip
    begin = time.perf_counter()
    train_grpo(config)
    seconds = time.perf_counter() - begin
    lines = list(MetricsFile.read(folder / "metrics.jsonl"))[1:]  # the first batch loads everything
    total = sum(line["batch_seconds"] for line in lines)

    def mean(name: str) -> float:
        return float(sum(line[name] * line["batch_seconds"] for line in lines) / total)

    age = sum(line["staleness_mean"] for line in lines) / len(lines)
    return (
        f"| {staleness} | {total / len(lines):.2f} | {mean('idle_share'):.0%} | {mean('training_share'):.0%} "
        f"| {mean('episodes_in_flight'):.1f} | {age:.2f} | {lines[-1].get('calls_stale', 0)} | {seconds:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    for staleness in options.staleness:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(staleness, options.batches, Path(folder) / "run"))
    text = "\n".join(
        [
            f"Batches of {BATCH} × {GROUP} episodes of {TURNS} turns, {2 * BATCH * GROUP} slots; "
            f"{platform.machine()}, Python {platform.python_version()}.",
            "",
            "| staleness | s per batch | idle | training | in flight | mean age | calls dropped | s in all |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
        ]
    )
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
