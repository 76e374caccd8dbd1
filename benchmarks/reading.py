"""Reading a large trajectory file: Bough's reader against `datasets.load_dataset("json")`, in one run.

    python benchmarks/reading.py [--megabytes 1000]

Each contender is a process of its own that goes once through all rows and ends up with
Python objects; its peak memory is its own. `datasets` first converts the file into its
Arrow cache and then iterates (its streaming mode parses while it iterates).
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from bough.data.reader import Reader
from bough.data.writer import Writer
from bough.types import Call, Message, Task, Trajectory, Turn

PROGRAM = r"""
import re, sys, time
begin = time.perf_counter()
{body}
seconds = time.perf_counter() - begin
# Not getrusage: its peak is inherited from the process that started this one.
print(count, seconds, int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) / 1024)
"""
BODIES = {
    "bough": "from bough.data.reader import read\ncount = sum(1 for _ in read(sys.argv[1]))",
    "datasets": "import datasets\n"
    "rows = datasets.load_dataset('json', data_files=sys.argv[1], split='train', cache_dir=sys.argv[2])\n"
    "count = sum(1 for _ in rows)",
    "datasets, streaming": "import datasets\n"
    "rows = datasets.load_dataset('json', data_files=sys.argv[1], split='train', streaming=True)\n"
    "count = sum(1 for _ in rows)",
}


def episode(number: int, rounds: int = 20) -> Trajectory:
    """A household episode with the exact tokens of its calls."""
    turns, seen = [], [(number * 31 + i) % 49_000 for i in range(400)]
    for i in range(rounds):
        answer = [(number + i * 7 + j) % 49_000 for j in range(24)]
        call = Call(prompt_ids=seen, completion_ids=answer, logprobs=[-0.125 * (j + 1) for j in range(24)], text="…")
        reply = Message(role="assistant", content=f"THOUGHT: The drawer {i} may hold it.\nACTION: go to drawer {i}")
        seen = [*seen, *answer, *(range(1000, 1060))]
        observation = [Message(role="user", content=f"You arrive at drawer {i}. The drawer {i} is closed. " * 3)]
        turns.append(Turn(reply=reply, call=call, action=f"go to drawer {i}", observation=observation, reward=0.0))
    start = [
        Message(role="user", content="You are in the middle of a room. Your task is to: put a mug in the safe. " * 4)
    ]
    return Trajectory(
        id=str(number), task=Task(id=f"t{number % 50}"), start=start, turns=turns, rewards={"outcome": 1.0}
    )


def fill(path: Path, megabytes: int) -> int:
    """Writes distinct episodes until there are 20 MB, then repeats that block."""
    block, number = path.with_name("block.jsonl"), 0
    with Writer(block) as writer:
        while block.stat().st_size < 20e6:
            writer.write(episode(number))
            number += 1
    text = block.read_bytes()
    with path.open("wb") as file:
        for _ in range(max(1, round(megabytes * 1e6 / len(text)))):
            file.write(text)
    return path.stat().st_size


def measure(name: str, path: Path, cache: str) -> tuple[int, float, float]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=BODIES[name]), str(path), cache],
        capture_output=True,
        text=True,
        check=True,
    )
    count, seconds, megabytes = done.stdout.split()
    return int(count), float(seconds), float(megabytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trajectories.jsonl"
        size = fill(path, arguments.megabytes)
        first = json.loads(path.open().readline())
        print(f"{size / 1e6:.0f} MB of trajectories, {len(first['turns'])} turns each with exact tokens")
        versions = ", ".join(f"{name} {version(name)}" for name in ("datasets", "pyarrow", "pydantic"))
        print(f"Python {platform.python_version()}, {versions}, {platform.machine()}, {time.strftime('%Y-%m-%d')}\n")
        print("| reader | rows | seconds | MB/s | peak memory |\n|---|---|---|---|---|")
        speeds = {}
        for name in BODIES:
            count, seconds, megabytes = measure(name, path, folder)
            speeds[name] = size / 1e6 / seconds
            print(f"| {name} | {count:,} | {seconds:.1f} | {speeds[name]:.0f} | {megabytes:.0f} MB |", flush=True)
        print(f"\nratio to datasets: {speeds['bough'] / speeds['datasets']:.2f}")
        assert sum(1 for _ in Reader(path)) > 0


if __name__ == "__main__":
    main()
