"""A program: runs Bough in child processes that it kills at random, until one gets to the end.

    Warm("tests.training.killed_run")

Each line that it is sent is JSON: the command line's `arguments`, the `folder` to run in, how
many `kills` at most, the `seed` of when, and two files for what the children print (`said`) and
report (`reported`). It answers with the number of kills and the exit code. The children are
forked from a warm process, so a kill costs no start.

A child is killed when it has used a random amount of CPU time, of 0 to 2 / `kills` of what the
last run without kills took: at least half of the kills happen before a run can be complete, on
fast and on busy machines alike.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, Self

import psutil

from tests.warm import Warm


class KilledRuns:
    """The program, as tests use it: `with KilledRuns(logs) as runs: runs.finish(…)`."""

    def __init__(self, logs: Path) -> None:
        self.said, self.reported = logs / "stdout.txt", logs / "stderr.txt"
        self.server = Warm("tests.training.killed_run", environment={**os.environ, "COLUMNS": "200"})

    def finish(self, folder: Path, arguments: list[str], *, kills: int, seed: int) -> tuple[int, list[str]]:
        """Runs a command to its end through this many kills at most: how many there were, and what was printed.

        Run the same command with no kills first: that decides when the kills come.
        """
        self.said.unlink(missing_ok=True)
        wanted = {"arguments": arguments, "folder": str(folder), "kills": kills, "seed": seed}
        files = {"said": str(self.said), "reported": str(self.reported)}
        self.server.stdin.write(json.dumps(wanted | files) + "\n")
        self.server.stdin.flush()
        killed, code = map(int, self.server.stdout.readline().split())
        assert code == 0, self.reported.read_text()[-2000:]
        return killed, self.said.read_text().splitlines()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.communicate()


def run(
    arguments: list[str], folder: str, kills: int, seed: int, said: str, reported: str, whole_s: float
) -> tuple[int, int, float]:
    """The number of kills, the last child's exit code and its CPU time, where a run without kills takes `whole_s`."""
    from bough.cli import main

    rng, killed = random.Random(seed), 0
    while True:
        child = os.fork()
        if child == 0:
            os.chdir(folder)
            for number, file in ((1, said), (2, reported)):
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
            code = main(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        if killed < kills:
            wait_for_cpu_time(child, rng.uniform(0, 2 / kills) * whole_s)
            os.kill(child, signal.SIGKILL)
        _, status, used = os.wait4(child, 0)
        if not os.WIFSIGNALED(status):
            return killed, os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        killed += 1


def wait_for_cpu_time(child: int, seconds: float) -> None:
    """Until the child has used this much, or ended."""
    process = psutil.Process(child)
    while not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        used = process.cpu_times()
        if used.user + used.system >= seconds:
            return
        time.sleep(0.005)


def serve() -> None:
    whole_s = 0.0
    for line in sys.stdin:
        wanted: dict[str, Any] = json.loads(line)
        killed, code, used_s = run(**wanted, whole_s=whole_s)
        if not wanted["kills"]:
            whole_s = used_s
        print(killed, code, flush=True)


if __name__ == "__main__":
    serve()
