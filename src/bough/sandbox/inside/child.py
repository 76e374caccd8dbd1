"""The process that runs the model's code: it drops its privileges, then runs cells one after another.

The program can reach only its own pipes, its scratch folder and a copy of the keeper's
memory. The keeper reads the result pipe as data, so a forged result gains nothing over
printed text.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sys
import threading
from typing import Any, NamedTuple, NoReturn

from bough.sandbox.inside import frames, kernel, seccomp
from bough.sandbox.inside.notebook import Notebook

CODE, RESULT, MOST_FILES, MOST_SIGNALS = 250, 251, 256, 1024
MEGABYTE = 1 << 20


class Pipes(NamedTuple):
    """The child's ends."""

    code: int
    result: int
    stdout: int
    stderr: int


def live(pipes: Pipes, settings: dict[str, Any], filter_program: bytes | None) -> NoReturn:
    """Runs cells until there are no more. Called in a newly forked process; never returns."""
    status = 70
    try:
        _take_places(pipes)
        _lock_in(settings, filter_program)
        _run_cells(settings)
        status = 0
    except BaseException as error:
        with contextlib.suppress(BaseException):
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


def ask(text: str) -> str:
    """Asks the host `text` during a cell and returns the answer."""
    frames.send(RESULT, {"ask": text})
    message = frames.receive(CODE)
    if message is None:
        raise EOFError("the host is gone")
    return str(message["answer"])


def _take_places(pipes: Pipes) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setpgid(0, 0)
    nothing = os.open("/dev/null", os.O_RDONLY)
    # First to numbers that are free, then to their final numbers: they may overlap.
    moved = [os.dup(end) for end in pipes]
    for source, place in zip([*moved, nothing], (CODE, RESULT, 1, 2, 0), strict=True):
        os.dup2(source, place, inheritable=place < 3)
    os.closerange(3, CODE)
    kernel.close_from(RESULT + 1)


def _lock_in(settings: dict[str, Any], filter_program: bytes | None) -> None:
    os.chdir(settings["scratch"])
    os.umask(0o022)
    memory, disk = settings["memory_mb"] * MEGABYTE, settings["disk_mb"] * MEGABYTE
    limits = {"AS": memory, "FSIZE": disk, "NOFILE": MOST_FILES, "CORE": 0, "MEMLOCK": 0}
    limits |= {"MSGQUEUE": 0, "SIGPENDING": MOST_SIGNALS}
    if settings["alone"]:  # otherwise the limit would count every process of the user
        limits["NPROC"] = settings["processes"] + 1  # the keeper is one of them
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
    with contextlib.suppress(OSError):
        kernel.drop_capabilities()
    if filter_program is not None:
        seccomp.install(filter_program)
    random.seed(0)  # the same program gives the same answer


def _run_cells(settings: dict[str, Any]) -> None:
    for name, file in (("stdout", 1), ("stderr", 2)):
        text = open(file, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)  # noqa: SIM115
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.argv = [""]
    notebook, me = Notebook(settings["hide"]), os.getpid()
    while (message := frames.receive(CODE)) is not None:
        _allow_cpu(settings["cpu_s"])
        if message["asks"]:
            notebook.module.__dict__["ask"] = ask
        try:
            value, error = notebook.run(message["code"])
            if not message["keep"]:
                _wait_for_threads()
        except BaseException as late:  # an interrupt that arrived after the cell had ended
            value, error = None, type(late).__name__
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):
                stream.flush()
        if os.getpid() != me:
            return  # a process that the program forked has got here as well
        texts = {"value": value and _cut(value, settings), "error": error and _cut(error, settings)}
        frames.send(RESULT, {"number": message["number"], **texts})
        if not message["keep"]:
            return


def _allow_cpu(seconds: float) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = usage.ru_utime + usage.ru_stime
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (int(used + seconds + 0.999), hard))


def _wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _cut(text: str, settings: dict[str, Any]) -> str:
    """The beginning and the end of a text that is too long."""
    most = settings["output_bytes"]
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"
