"""Time from the command to the first optimizer step on a large file, and the memory that takes.

    python benchmarks/first_step.py [--episodes 16000] [--model tiny] [--keep FOLDER]

Writes household-like episodes (8.7 replies each, as the household's expert plays them) and trains
one step of SFT on them in a process of its own, three times: with an empty cache; with everything
that the first run left; and with its compiled code but without its prepared examples. Other
arguments go to `bough sft`. Reported are wall and CPU seconds (worker processes included) until the
first line of metrics, and the peak memory of the process. Each row is printed as it is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fresh_cache import fresh_cache

from bough.methods.examples import FOLDER
from bough.models.resolve import resolve

PLACES = ("cabinet", "drawer", "shelf", "countertop", "fridge", "microwave", "sinkbasin", "garbagecan", "toaster")
THINGS = ("mug", "tomato", "apple", "plate", "knife", "book", "pillow", "candle", "vase", "laptop", "egg", "pan")
SYSTEM = (
    "Interact with a household to solve a task. Each turn, think in a line that begins with THOUGHT: and then act "
    "in a line that begins with ACTION:, for example ACTION: go to shelf 1. If the answer is "
    '"Nothing happens.", the action was not valid.'
)
# A stage of a run: its first step has been computed when the first line of metrics is there.
PROGRAM = r"""
import os, re, resource, sys, time
from pathlib import Path
begin = time.time()
from bough import bit_exact
from bough.cli import main
from bough.training.loop import MetricsFile
append = MetricsFile.append
def measured(self, values):
    append(self, values)
    wall = time.time() - float(os.environ["BEGIN"])
    cpu = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    peak = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
    print(f"measured {wall:.1f} {cpu:.1f} {peak:.0f}", flush=True)
MetricsFile.append = measured
sys.exit(main(sys.argv[1:]))
"""


def episode(number: int) -> dict[str, object]:
    """One conversation in the ShareGPT format."""
    rng = random.Random(number)
    rooms = ", ".join(f"a {rng.choice(PLACES)} {rng.randint(1, 26)}" for _ in range(rng.randint(20, 45)))
    task = f"Your task is to: put some {rng.choice(THINGS)} on {rng.choice(PLACES)}."
    said = [
        {"from": "system", "value": SYSTEM},
        {"from": "human", "value": f"You are in the middle of a room. Looking quickly around you, you see {rooms}."
         f"\n\n{task}"},
    ]  # fmt: skip
    for _ in range(rng.randint(5, 12)):
        place, found = f"{rng.choice(PLACES)} {rng.randint(1, 26)}", rng.sample(THINGS, rng.randint(0, 4))
        seen = ", ".join(f"a {one} {rng.randint(1, 3)}" for one in found) or "nothing"
        said.append({"from": "gpt", "value": f"THOUGHT: The {place} is worth a look.\nACTION: go to {place}"})
        said.append({"from": "human", "value": f"You arrive at {place}. On the {place}, you see {seen}."})
    return {"id": f"household_{number}", "conversations": said[:-1]}


def write(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            file.write(json.dumps(episode(number)) + "\n")


def first_step(data: Path, folder: Path, model: str, cache: Path, *more: str) -> list[str]:
    """Wall seconds, CPU seconds and peak MiB until the first step is done, or why it was not."""
    arguments = ["sft", "--model", model, "--train-file", str(data), "--output-dir", str(folder), "--max-steps", "1"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments, *more],
        env=os.environ | {"BEGIN": str(time.time()), "BOUGH_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("measured ")]
    if not lines:
        print((done.stdout + done.stderr)[-3000:], file=sys.stderr, flush=True)
        return [f"failed, exit {done.returncode}", "", ""]
    return lines[0].split()[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=16_000)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--keep", type=Path, help="write the data here and keep it")
    arguments, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temporary:
        data = (arguments.keep or Path(temporary)) / f"episodes-{arguments.episodes}.jsonl"
        data.parent.mkdir(parents=True, exist_ok=True)
        if not data.exists():
            write(data, arguments.episodes)
        resolve(arguments.model)  # fetched and converted here, not in a run that is timed
        cache = fresh_cache(Path(temporary) / "cache")
        size = f"{data.stat().st_size / 1e6:.0f} MB"
        print(f"{arguments.model}, {arguments.episodes:,} episodes, {size}, {os.cpu_count()} cores\n")
        print("| cache | wall s | CPU s | peak MiB |\n|---|---|---|---|", flush=True)
        for number, name in enumerate(("empty", "filled", "compiled code only")):
            if name == "compiled code only":
                shutil.rmtree(cache / FOLDER, ignore_errors=True)
            numbers = first_step(data, Path(temporary) / f"run-{number}", arguments.model, cache, *more)
            print(f"| {' | '.join([name, *numbers])} |", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("interrupted") from None
