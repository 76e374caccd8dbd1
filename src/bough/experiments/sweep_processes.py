"""The runs of a sweep in processes of their own: several on this machine, or over the nodes of a cluster.

`python -m bough.experiments.sweep_processes` is such a process: it reads one line of JSON from stdin, plays the
run, and writes how it ended to stdout. Everything else it prints goes to its log. It ends with the process that
started it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from pathlib import Path
from typing import Any

from bough.config.groups import ClusterConfig
from bough.errors import BoughError, exception_line
from bough.experiments.recipe import Recipe
from bough.experiments.record import SharedStages
from bough.experiments.run import LOCK, Run
from bough.files import locked, open_own
from bough.ledger import plural
from bough.rollouts.ray import connected, make_plan, nodes
from bough.rollouts.ray_pool import Actors, WorkerLostError, WorkerPool
from bough.rollouts.ray_workers import Surroundings, refusal, shared_token
from bough.terminal import console

Notify = Callable[[str], None]
# Where torch reads settings of its memory.
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
# Of a GPU: each process also has a context of its own there.
SHARED = 0.95
Started = Callable[[Run, int], None]
Ended = Callable[[Run, str | None], None]


def in_processes(runs: Sequence[Run], jobs: int, logs: Path, started: Started, ended: Ended) -> None:
    """Plays all runs on this machine, `jobs` at a time."""
    logs.mkdir(parents=True, exist_ok=True)
    children: list[subprocess.Popen[bytes]] = []
    env = os.environ | gpu_share(min(jobs, len(runs)))

    def play(run: Run) -> str | None:
        return play_in_child(order_of(run), logs / f"{run.folder.name}.log", children, env)

    def stop() -> None:
        for child in list(children):
            child.terminate()

    several_at_a_time(runs, jobs, play, stop, started, ended)


def several_at_a_time(
    runs: Sequence[Run],
    jobs: int,
    play: Callable[[Run], str | None],
    stop: Callable[[], None],
    started: Started,
    ended: Ended,
) -> None:
    """Calls `play` for all runs, `jobs` at a time; it returns why a run failed. `stop` ends those that are playing."""
    telling = threading.Lock()

    def work(run: Run, number: int) -> str | None:
        with telling:
            started(run, number)
        return play(run)

    pool = ThreadPoolExecutor(jobs)
    try:
        futures = {pool.submit(work, run, number): run for number, run in enumerate(runs, 1)}
        for future in as_completed(futures):
            failure = future.result()
            with telling:
                ended(futures[future], failure)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        stop()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def gpu_share(processes: int) -> dict[str, str]:
    """Environment variables that give each of several processes an equal part of every GPU's memory.

    An engine takes most of what is free, which would leave nothing for the training of the process beside it.
    Settings of the user's own stay as they are.
    """
    if processes < 2 or any(name in os.environ for name in ALLOCATOR):
        return {}
    return {ALLOCATOR[0]: f"per_process_memory_fraction:{SHARED / processes:.3f}"}


def play_in_child(
    order: Mapping[str, Any], log: Path, children: list[subprocess.Popen[bytes]], env: Mapping[str, str] | None = None
) -> str | None:
    """Plays the run of `order` in a process, which is in `children` meanwhile; returns why it failed."""
    with os.fdopen(open_own(log), "ab") as said:
        command = [sys.executable, "-m", "bough.experiments.sweep_processes"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, env=env)  # noqa: S603
        children.append(child)
        assert child.stdin is not None and child.stdout is not None
        with child.stdin, child.stdout:
            try:
                child.stdin.write(json.dumps(order).encode() + b"\n")
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


def order_of(run: Run, *, wait_s: float = 0) -> dict[str, Any]:
    """What a process needs to play the run. It waits up to `wait_s` for another process that is in the run's folder."""
    assert run.shared is not None
    return {
        "recipe": run.recipe.model_dump(mode="json"),
        "folder": str(run.folder),
        "shared": str(run.shared.folder),
        "report_to": run.report_to,
        "wait_s": wait_s,
    }


# The runs of a sweep on a cluster: each in a process on one of the nodes, as on one machine.
# Every node works in the sweep's own folder, so runs find each other's finished stages and resume after their node
# was lost. A process ends with the worker that started it, and a worker with the sweep.

# A lost node may not know it yet, and a file server keeps the locks of a lost client for up to 90 s.
WAIT_S = 120.0
# A run that has lost this many workers has failed: it may be the reason, for example by its memory.
MAX_LOSSES = 5


class RunWorker:
    """Plays runs on a node of a cluster. `token` is a file in the sweep's folder, whose lock the sweep holds."""

    def __init__(self, surroundings: Surroundings, token: Path) -> None:
        self.surroundings, self.token = surroundings, token
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self) -> str | None:
        """Why this node cannot play runs; None if it can."""
        try:
            self.surroundings.enter()
        except BoughError as error:
            return refusal(error)
        folder = self.token.parent
        if not self.token.is_file():
            return f"it does not see the files in {folder}, which must be on a disk that all nodes share"
        try:
            with locked(folder / LOCK, wait=False):
                return f"locks in {folder} do not hold across machines; mount that disk with file locks"
        except BlockingIOError:  # as it must be
            pass
        if not Path(self.surroundings.folder).is_dir():
            return f"it has no folder {self.surroundings.folder}, where relative paths of the recipe begin"
        return None

    def play(self, order: Mapping[str, Any], log: Path) -> str | None:
        return play_in_child(order, log, self._children)

    def close(self) -> None:
        for child in list(self._children):
            child.terminate()


def on_cluster(
    runs: Sequence[Run], config: ClusterConfig, folder: Path, logs: Path, started: Started, ended: Ended, notify: Notify
) -> None:
    """Plays all runs on the cluster. The lock of `folder`, the sweep's own, is held meanwhile."""
    logs.mkdir(parents=True, exist_ok=True)
    with connected(config), shared_token(folder.absolute()) as token:
        plan = make_plan(config, nodes(), concurrency=len(runs), uses_gpu=True)
        notify(f"cluster of {plan.cluster}: up to {plural(plan.workers, 'run')} at the same time")
        made_of = (Surroundings.here(gpus=plan.gpus_per_worker), token)
        pool = WorkerPool.on_ray(
            RunWorker, made_of, plan, most=1, spare_calls=1, timeout_s=config.timeout_s, say=notify
        )  # fmt: skip
        with closing(Actors(pool)) as workers:

            def play(run: Run) -> str | None:
                order, log, losses = order_of(run, wait_s=WAIT_S), (logs / f"{run.folder.name}.log").absolute(), 0
                while True:
                    try:
                        failure: str | None = workers.do("play", order, log)
                        return failure
                    except WorkerLostError as error:
                        losses += 1
                        if losses == MAX_LOSSES:
                            return f"its worker on the cluster was lost {losses} times ({error})"

            several_at_a_time(runs, plan.workers, play, workers.close, started, ended)


# The process itself.


def main() -> None:
    answer = os.dup(1)
    os.dup2(2, 1)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with open(0, "rb", buffering=0, closefd=False) as orders:
        order = json.loads(orders.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    failure = None
    try:
        wait_until_free(Path(order["folder"]) / LOCK, order["wait_s"])
        shared = SharedStages(Path(order["shared"]))
        run = Run(Recipe(**order["recipe"]), Path(order["folder"]), report_to=order["report_to"], shared=shared)
        run.play(console.announce)
    except BoughError as error:
        failure = str(error) or exception_line(error)
    except Exception as error:  # reported like any other failure; the log has the traceback
        sys.excepthook(type(error), error, error.__traceback__)
        failure = exception_line(error)
    os.write(answer, json.dumps({"failure": failure}).encode())


def wait_until_free(lock: Path, seconds: float) -> None:
    """Waits while another process holds the lock: one on a machine that was lost may work on for a moment."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with locked(lock, wait=False):
                return
        except BlockingIOError:
            time.sleep(0.2)


def _end_with_parent() -> None:
    """Stdin ends when the parent has ended, however it did: a restarted sweep must find no run in use."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
