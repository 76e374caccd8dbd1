"""Time from a command to its help text, to a refused input, and to the first sampled token.

    python benchmarks/startup.py --model smollm2 --output benchmarks/results/startup.md

Every command is a process of its own. The first sampled token is that of `bough collect`: the
environment of this file notes when it gets the first reply, which has one token. Cold is the first
run with an empty cache folder (converted models, compiled code), warm are the runs after it, of
which the median is reported; Python's compiled modules and the system's file cache are warm in all.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bough.environments.base import Environment, Observation
from bough.types import Task

SPAWNED = "BOUGH_STARTUP_SPAWNED"


class FirstToken(Environment):
    """Ends with the first reply and says when that came."""

    max_turns = 1
    shares_loop = True

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:  # noqa: ARG003
        yield Task(id="first-token")

    def start(self) -> Observation:
        return Observation.say("Say something.")

    def step(self, reply: str) -> Observation:  # noqa: ARG002
        used = resource.getrusage(resource.RUSAGE_SELF)
        wall = time.time() - float(os.environ[SPAWNED])
        print(f"first token: {wall:.3f} {used.ru_utime + used.ru_stime:.3f}", flush=True)
        return Observation.end(success=True)


class Taken(NamedTuple):
    """Seconds of one command."""

    wall_s: float
    cpu_s: float


def taken(words: list[str], cache: Path, code: int = 0) -> Taken:
    """Runs `bough WORDS`; to its end, or to the first token where it says when that came."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    done = subprocess.run(
        [sys.executable, "-m", "bough", *words],
        env={**os.environ, "BOUGH_CACHE": str(cache), SPAWNED: str(begin)},
        capture_output=True,
        text=True,
        check=False,
    )
    wall, after = time.time() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == code, done.stdout + done.stderr
    for line in done.stdout.splitlines():
        if line.startswith("first token: "):
            return Taken(*map(float, line.split()[2:]))
    return Taken(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a Markdown file to which the result is added")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first_token = [
            "collect", "--model", options.model, "--environment", f"{Path(__file__).absolute()}:FirstToken",
            "--tasks", "1", "--max-new-tokens", "1", "--rescore", "0", "--overwrite", "--output", str(folder / "out"),
        ]  # fmt: skip
        work: dict[str, tuple[list[str], int]] = {
            "`bough --help`": (["--help"], 0),
            "`bough collect --help`": (["collect", "--help"], 0),
            "a misspelt flag": (["collect", "--modle", "tiny"], 2),
            "a file that is missing": (["sft", "--train-file", "none.jsonl"], 2),
            "an unknown environment": (["grpo", "--environment", "housold", "--max-steps", "1"], 2),
            "an unknown split": ([*first_token[:3], "--environment", "household", "--split", "x", "-o", name], 2),
            "first sampled token": (first_token, 0),
        }
        rows = []
        for what, (words, code) in work.items():
            cold = taken(words, folder / "cache", code)
            warm = [taken(words, folder / "cache", code) for _ in range(options.repeat)]
            wall, cpu = (statistics.median(values) for values in zip(*warm, strict=True))
            rows.append([what, f"{cold.wall_s:.2f}", f"{cold.cpu_s:.2f}", f"{wall:.2f}", f"{cpu:.2f}"])
            print(rows[-1], flush=True)
    from measure import machine, table  # imports torch

    columns = ["", "cold: seconds", "CPU seconds", "warm: seconds", "CPU seconds"]
    load = os.getloadavg()[0]
    text = f"## {options.model}\n\n{machine()}; load {load:.0f}.\n\n{table(columns, rows)}\n"
    print(text)
    if options.output:
        with options.output.open("a", encoding="utf-8") as file:
            file.write("\n" + text)


if __name__ == "__main__":
    main()
