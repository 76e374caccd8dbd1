"""A program: kills online runs at random moments until they get to their ends, and checks their files after each kill.

    Warm("tests.online.killed_stream", KILLS, SEED, STALENESS…)

There is one run for each `--max-staleness`, in a folder of that name. The children are forked
from a warm process, so a kill costs no start. After every kill the
finished episodes on disk are noted. In the end no group may be in two batches, and each group
must have the episodes that were noted for it: a finished episode is never played again. Prints
a line for each run: the number of kills, and how many of the noted episodes were learnt from.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bough.cli import main

Episodes = dict[tuple[int, str], list[int]]  # the answered tokens of each finished episode
COMMON = [
    "grpo", "--model", "tiny", "--environment", "tests.online.letters:Uneven", "--max-steps", "3", "--batch-size", "2",
    "--group-size", "4", "--max-new-tokens", "8", "--learning-rate", "0.005", "--lr-scheduler", "constant",
    "--warmup-ratio", "0", "--logging-steps", "1", "--save-steps", "2", "--no-watch", "--resume",
]  # fmt: skip


def tokens(record: dict[str, Any]) -> list[int]:
    return [token for turn in record["turns"] for token in turn["call"]["completion_ids"]]


def lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file: a kill may have torn the last one."""
    try:
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    except FileNotFoundError:  # its group has just entered a batch
        return []


def finished(folder: Path) -> Episodes:
    """The finished episodes that are in no batch yet."""
    return {
        (int(path.stem), record["id"]): tokens(record)
        for path in (folder / "episodes").glob("*.jsonl")
        for record in lines(path)
    }


def learnt(folder: Path) -> tuple[list[int], Episodes]:
    """The numbers of all groups in batches, and their episodes."""
    groups = [group for path in sorted((folder / "rollouts").glob("[0-9]*.jsonl")) for group in lines(path)]
    numbers = [group["info"]["number"] for group in groups]
    return numbers, {
        (number, record["id"]): tokens(record)
        for number, group in zip(numbers, groups, strict=True)
        for record in group["attempts"]
    }


def check(folder: Path, noted: Episodes) -> int:
    """How many of the noted episodes were learnt from."""
    numbers, used = learnt(folder)
    assert len(numbers) == len(set(numbers)), f"a group is in two batches: {sorted(numbers)}"
    again = [key for key, found in noted.items() if key in used and used[key] != found]
    assert not again, f"these were finished and were played again: {again}"
    return len(noted.keys() & used.keys())


def wait_for_episodes(folder: Path, child: int, count: int) -> None:
    """Until the child has finished this many episodes, or ended."""
    before, seen = {*finished(folder), *learnt(folder)[1]}, set[tuple[int, str]]()
    while len(seen) < count and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        time.sleep(0.02)
        seen |= finished(folder).keys() - before


def run(kills: int, seed: int, staleness: str) -> None:
    folder = Path(staleness)
    rng, killed, noted = random.Random(seed), 0, Episodes()
    while True:
        child = os.fork()
        if child == 0:
            os._exit(main([*COMMON, "--max-staleness", staleness, "--output-dir", str(folder)]))
        if killed < kills:
            wait_for_episodes(folder, child, rng.randint(1, 8))
            time.sleep(rng.uniform(0.0, 0.05))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            break
        killed += 1
        noted |= finished(folder)
        check(folder, noted)
    if code := os.waitstatus_to_exitcode(status):
        sys.exit(code)
    print(killed, check(folder, noted), flush=True)


if __name__ == "__main__":
    for max_staleness in sys.argv[3:]:
        run(int(sys.argv[1]), int(sys.argv[2]), max_staleness)
