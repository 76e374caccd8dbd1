"""Time from a command to its help text, to a refused input, and to the first sampled token.

    python benchmarks/startup.py --model smollm2 --output benchmarks/results/startup.md
    python benchmarks/startup.py --model smollm2 --only token --repeat 2

Every command is a process of its own. The first sampled token is that of `bough collect`: the
environment of this file notes when the engine is ready (an episode begins) and when it gets the
first reply, which has one token. Cold is the first run without compiled code, warm are the runs
after it, of which the median is reported; the model, Python's compiled modules and the system's
file cache are warm in all. Each run is printed as it ends, and the table at the end, also after
Ctrl-C.
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
MARK = "startup: "
COLUMNS = ["", "cold: seconds", "CPU seconds", "warm: seconds", "CPU seconds"]


class FirstToken(Environment):
    """Ends with the first reply and says when that came."""

    max_turns = 1
    shares_loop = True

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:  # noqa: ARG003
        yield Task(id="first-token")

    def start(self) -> Observation:
        note("engine ready")
        return Observation.say("Say something.")

    def step(self, reply: str) -> Observation:  # noqa: ARG002
        note("first sampled token")
        return Observation.end(success=True)


def note(what: str) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    wall = time.time() - float(os.environ[SPAWNED])
    print(f"{MARK}{wall:.3f} {used.ru_utime + used.ru_stime:.3f} {what}", flush=True)


class Taken(NamedTuple):
    """Seconds of one command."""

    wall_s: float
    cpu_s: float


class FailedError(Exception):
    """A command ended otherwise than it should."""


def taken(words: list[str], cache: Path, code: int = 0) -> dict[str, Taken]:
    """Runs `bough WORDS`: its time to the end, or where it notes moments, to each of them."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    done = subprocess.run(
        [sys.executable, "-m", "bough", *words],
        env={**os.environ, "BOUGH_CACHE": str(cache), SPAWNED: str(begin)},
        capture_output=True,
        text=True,
        check=False,
    )
    wall, after = time.time() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != code:
        raise FailedError((done.stdout + done.stderr)[-2000:])
    marks = [line.removeprefix(MARK).split(maxsplit=2) for line in done.stdout.splitlines() if line.startswith(MARK)]
    if marks:
        return {what: Taken(float(wall), float(cpu)) for wall, cpu, what in marks}
    return {"": Taken(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)}


def measured(what: str, words: list[str], code: int, cache: Path, repeat: int) -> Iterator[list[str]]:
    """The rows of one command."""
    runs = []
    for _ in range(1 + repeat):
        runs.append(taken(words, cache, code))
        print(what, *(f"{moment} {one.wall_s:.2f} s" for moment, one in runs[-1].items()), flush=True)
    cold, *warm = runs
    for moment, first in cold.items():
        wall, cpu = (statistics.median(values) for values in zip(*(one[moment] for one in warm), strict=True))
        yield [moment or what, f"{first.wall_s:.2f}", f"{first.cpu_s:.2f}", f"{wall:.2f}", f"{cpu:.2f}"]


def commands(model: str, folder: Path, only: str) -> dict[str, tuple[list[str], int]]:
    """What is run, by name, each with its exit code."""
    first_token = [
        "collect", "--model", model, "--environment", f"{Path(__file__).absolute()}:FirstToken",
        "--tasks", "1", "--max-new-tokens", "1", "--rescore", "0", "--overwrite", "--output", str(folder / "out"),
    ]  # fmt: skip
    token = {"first sampled token": (first_token, 0)}
    others = {
        "`bough --help`": (["--help"], 0),
        "`bough collect --help`": (["collect", "--help"], 0),
        "a misspelt flag": (["collect", "--modle", "tiny"], 2),
        "a file that is missing": (["sft", "--train-file", "none.jsonl"], 2),
        "an unknown environment": (["grpo", "--environment", "housold", "--max-steps", "1"], 2),
        "an unknown split": ([*first_token[:3], "--environment", "household", "--split", "x", "-o", str(folder)], 2),
    }
    return token if only == "token" else others if only == "refusals" else token | others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--repeat", type=int, default=3, help="warm runs, at least 1")
    parser.add_argument("--only", choices=["token", "refusals"], default="", help="one half of the commands")
    parser.add_argument("--output", type=Path, help="a Markdown file to which the result is added")
    options = parser.parse_args()
    from fresh_cache import fresh_cache  # not above: the environment is loaded from elsewhere

    from bough.models.resolve import resolve

    resolve(options.model)  # fetched and converted here, not in a run that is timed
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache = fresh_cache(folder / "cache")
        try:
            for what, (words, code) in commands(options.model, folder, options.only).items():
                try:
                    rows.extend(measured(what, words, code, cache, options.repeat))
                except FailedError as error:
                    print(f"{what} failed:\n{error}", flush=True)
                    rows.append([f"{what}: failed", "", "", "", ""])
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    from measure import machine, table  # imports torch

    text = f"## {options.model}\n\n{machine()}; load {os.getloadavg()[0]:.0f}.\n\n{table(COLUMNS, rows)}\n"
    print(text, flush=True)
    if options.output:
        with options.output.open("a", encoding="utf-8") as file:
            file.write("\n" + text)


if __name__ == "__main__":
    main()
