"""Arms of `evolve_study.py` side by side, each in a process of its own, on one GPU or on the cores of a computer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 5


@dataclass
class Job:
    """One run of this program: its arguments after the world, and the file of what it prints."""

    name: str
    words: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None


def run_jobs(waiting: Sequence[Job], command: Sequence[str], at_once: int, ended: Callable[[Job, int], None]) -> None:
    """Runs all jobs, `at_once` of them at a time, in their order. When this is interrupted, so are they.

    `ended` is told each job's exit code.
    """
    left, running = list(waiting), list[Job]()
    try:
        while left or running:
            while left and len(running) < at_once:
                running.append(_started(left.pop(0), command, at_once))
            for job in [one for one in running if one.process and one.process.poll() is not None]:
                running.remove(job)
                assert job.process is not None
                ended(job, job.process.returncode)
            time.sleep(0.1)
    finally:
        for job in running:
            _stop(job)


def _stop(job: Job) -> None:
    """Lets the process close what it has started, such as a browser, but not for long."""
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    try:
        job.process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        job.process.kill()
        job.process.wait()


def _started(job: Job, command: Sequence[str], at_once: int) -> Job:
    threads = max(1, len(os.sched_getaffinity(0)) // at_once)
    limits = {"OMP_NUM_THREADS": f"{threads}", "TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        words = [sys.executable, *command, *job.words]
        job.process = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, **limits})
    return job
