"""Runs tests against mutants: several copies of the repository, one test process in each.

Test processes are forked from a process that has loaded torch and pytest, so that a mutant
costs little more than its tests. Only one thread forks, because a fork copies no other thread.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from compileall import compile_dir
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from tempfile import TemporaryDirectory

from benchmarks.mutants import Mutant

ROOT = Path(__file__).parents[1]
NEEDED = ("src", "tests", "examples", "benchmarks", "pyproject.toml")
MEMORY = 8 << 30  # bytes of data per process: a loop without an end may also fill a list


@dataclass
class Trial:
    """A module with one change, or without any, and what its tests made of it."""

    module: str
    tests: list[str]
    mutant: Mutant | None = None
    limit_s: int = 300
    fate: str = "not tried"
    cpu_s: float = 0.0
    output: str = ""


class FirstExample:
    """A pytest plugin: one failing example is enough, and looking for a smaller one takes most of the time."""

    def pytest_collection(self) -> None:  # after conftest.py, before the tests are imported
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("first-example", settings.default, phases=phases, database=None)
        settings.load_profile("first-example")


@contextmanager
def copies_of_repository(count: int) -> Iterator[list[Path]]:
    """Folders with the parts of the repository that tests need, compiled."""
    with TemporaryDirectory(prefix="mutation-") as folder:
        copies = [Path(folder) / str(i) for i in range(count)]
        for copy in copies:
            copy.mkdir()
        for name in NEEDED:
            _copy(ROOT / name, copies[0] / name)
        # Mutants of the same size may be written within one tick of the clock, so files are not compared with their
        # source; a changed module's own file is removed.
        compile_dir(copies[0] / "src", quiet=2, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
        for copy in copies[1:]:
            shutil.copytree(copies[0], copy, dirs_exist_ok=True)
        yield copies


def run_trials(trials: list[Trial], copies: list[Path], end: float) -> Iterator[Trial]:
    """Gives each trial when its tests have ended, until `end`, a time of the monotonic clock.

    What is stopped then, or has not been started, is given last, as `not tried`.
    """
    waiting, free = trials[::-1], list(copies)
    running: dict[int, tuple[Trial, Path]] = {}
    while running or (waiting and time.monotonic() < end):
        while waiting and free and time.monotonic() < end:
            trial, copy = waiting.pop(), free.pop()
            running[_start(trial, copy)] = trial, copy
        late = time.monotonic() >= end
        for pid in running if late else ():
            os.killpg(pid, signal.SIGKILL)
        pid, status, usage = os.wait4(-1, 0 if late else os.WNOHANG)
        if not pid:
            time.sleep(0.02)
            continue
        trial, copy = running.pop(pid)
        _module(trial, copy).write_bytes(_module(trial, ROOT).read_bytes())
        free.append(copy)
        trial.cpu_s = usage.ru_utime + usage.ru_stime
        trial.fate = "not tried" if late else _fate(status)
        trial.output = _log(copy).read_text(encoding="utf-8", errors="replace")
        if not late:
            yield trial
    yield from (trial for trial in trials if trial.fate == "not tried")


def _start(trial: Trial, copy: Path) -> int:
    """Forks a process that imports the package from the copy, with the trial's change in it."""
    module = _module(trial, copy)
    for cached in module.parent.glob(f"__pycache__/{module.stem}.*.pyc"):
        cached.unlink()
    if trial.mutant is not None:
        module.write_text(trial.mutant.source, encoding="utf-8")
    pid = os.fork()
    if pid:
        os.setpgid(pid, pid)  # before anything can ask for its end
        return pid
    status = 1
    try:
        with _log(copy).open("wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        status = _run_tests(copy, trial)
        sys.stdout.flush()
    finally:
        os._exit(status)


def _run_tests(copy: Path, trial: Trial) -> int:
    # CPU time, because the machine may be busy: the limit is for loops without an end.
    resource.setrlimit(resource.RLIMIT_CPU, (trial.limit_s, trial.limit_s + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    os.chdir(copy)
    sys.path[:0] = [str(copy / "src"), str(copy)]
    os.environ["PYTHONPATH"] = str(copy / "src")
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    import pytest

    arguments = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *trial.tests]
    return int(pytest.main(arguments, plugins=[FirstExample()]))


def _fate(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return "timed out"
    return "survived" if code == 0 else "killed"


def _module(trial: Trial, root: Path) -> Path:
    return root / "src" / "bough" / f"{trial.module}.py"


def _log(copy: Path) -> Path:
    return copy.with_suffix(".log")


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)
