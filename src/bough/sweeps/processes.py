"""Runs in processes of their own, several at a time. A process ends with the one that started it.

`python -m bough.sweeps.processes` is such a process: it reads one line of JSON from stdin,
plays the run, and writes how it ended to stdout. Everything else it prints goes to its log.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from bough.errors import BoughError, exception_line
from bough.runs.recipe import Recipe
from bough.runs.run import Run
from bough.runs.shared_stages import SharedStages
from bough.terminal import console

Started = Callable[[Run, int], None]
Ended = Callable[[Run, str | None], None]


def in_processes(runs: Sequence[Run], jobs: int, logs: Path, started: Started, ended: Ended) -> dict[str, str]:
    """Plays all runs, `jobs` at a time. Returns why runs failed, by the names of their folders."""
    logs.mkdir(parents=True, exist_ok=True)
    failed: dict[str, str] = {}
    children: list[subprocess.Popen[bytes]] = []
    telling = threading.Lock()

    def play(run: Run, number: int) -> str | None:
        with telling:
            started(run, number)
        return _play_in_child(run, logs / f"{run.folder.name}.log", children)

    pool = ThreadPoolExecutor(jobs)
    try:
        futures = {pool.submit(play, run, number): run for number, run in enumerate(runs, 1)}
        for future in as_completed(futures):
            run, failure = futures[future], future.result()
            with telling:
                ended(run, failure)
            if failure is not None:
                failed[run.folder.name] = failure
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in list(children):
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return {run.folder.name: failed[run.folder.name] for run in runs if run.folder.name in failed}


def _play_in_child(run: Run, log: Path, children: list[subprocess.Popen[bytes]]) -> str | None:
    with log.open("ab") as said:
        command = [sys.executable, "-m", "bough.sweeps.processes"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)  # noqa: S603  ours
        children.append(child)
        assert child.stdin is not None and child.stdout is not None
        with child.stdin, child.stdout:
            try:
                child.stdin.write(json.dumps(order_of(run)).encode() + b"\n")
                child.stdin.flush()
            except BrokenPipeError:  # it ended before it read; its exit code is reported below
                pass
            answer = child.stdout.read()
        child.wait()
        children.remove(child)
    if not answer:
        return f"its process ended with exit code {child.returncode}; its output is in {log}"
    failure: str | None = json.loads(answer)["failure"]
    return failure


def order_of(run: Run) -> dict[str, Any]:
    """What a process needs to play the run."""
    assert run.shared is not None
    return {
        "recipe": run.recipe.model_dump(mode="json"),
        "folder": str(run.folder),
        "shared": str(run.shared.folder),
        "report_to": run.report_to,
    }


def main() -> None:
    answer = os.dup(1)
    os.dup2(2, 1)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with open(0, "rb", buffering=0, closefd=False) as orders:
        order = json.loads(orders.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    failure = None
    try:
        shared = SharedStages(Path(order["shared"]))
        run = Run(Recipe(**order["recipe"]), Path(order["folder"]), report_to=order["report_to"], shared=shared)
        run.play(console.announce)
    except BoughError as error:
        failure = str(error) or exception_line(error)
    except Exception as error:  # reported like any other failure; the log has the traceback
        sys.excepthook(type(error), error, error.__traceback__)
        failure = exception_line(error)
    os.write(answer, json.dumps({"failure": failure}).encode())


def _end_with_parent() -> None:
    """Stdin ends when the parent has ended, however it did: a restarted sweep must find no run in use."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
