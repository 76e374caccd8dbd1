"""The process that runs the model's code: it drops its privileges, then runs cells one after another.

The program can reach only its own pipes, its scratch folder and a copy of the keeper's
memory. The keeper reads the result pipe as data, so a forged result gains nothing over
printed text.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import linecache
import os
import random
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any, NoReturn

from bough.sandbox.inside import frames, kernel, seccomp

CODE, RESULT, MOST_FILES, MOST_SIGNALS = 250, 251, 256, 1024
MEGABYTE = 1 << 20


def live(pipes: Sequence[int], settings: dict[str, Any], filter_program: bytes | None) -> NoReturn:
    """Runs cells until there are no more. Called in a newly forked process; never returns.

    `pipes` are the ends to read code from, and to write results, stdout and stderr to.
    """
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


def _take_places(pipes: Sequence[int]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setpgid(0, 0)
    nothing = os.open("/dev/null", os.O_RDONLY)
    # First to numbers that are free, then to their final numbers: they may overlap.
    moved = [os.dup(end) for end in pipes]
    for source, place in zip([*moved, nothing], (CODE, RESULT, 1, 2, 0), strict=True):
        os.dup2(source, place, inheritable=place < 3)
    os.closerange(3, CODE)
    os.closerange(RESULT + 1, 1 << 16)


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
        usage, (_, hard) = resource.getrusage(resource.RUSAGE_SELF), resource.getrlimit(resource.RLIMIT_CPU)
        with contextlib.suppress(ValueError, OSError):
            cpu_s = int(usage.ru_utime + usage.ru_stime + settings["cpu_s"] + 0.999)
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, hard))
        if message["asks"]:
            notebook.module.__dict__["ask"] = ask
        try:
            value, error = notebook.run(message["code"])
            for thread in threading.enumerate() if not message["keep"] else ():
                if thread is not threading.current_thread() and not thread.daemon:
                    thread.join()
        except BaseException as late:  # an interrupt that arrived after the cell had ended
            value, error = None, type(late).__name__
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):
                stream.flush()
        if os.getpid() != me:
            return  # a process that the program forked has got here as well
        reply: dict[str, Any] = {"number": message["number"]}
        for name, said in (("value", value), ("error", error)):
            output = Output(settings["output_bytes"])
            output.add((said or "").encode(errors="replace"))
            reply[name] = output.text if said is not None else None
        frames.send(RESULT, reply)
        if not message["keep"]:
            return


class Output:
    """The beginning and the end of a stream of any length: at most `most` bytes."""

    def __init__(self, most: int) -> None:
        self.half = most // 2
        self.head, self.tail = bytearray(), bytearray()
        self.left_out = 0

    def add(self, data: bytes) -> None:
        room = self.half - len(self.head)
        self.head += data[:room]
        self.tail += data[room:] if room else data
        surplus = len(self.tail) - self.half
        if surplus > 0:
            del self.tail[:surplus]
            self.left_out += surplus

    @property
    def text(self) -> str:
        if not self.left_out:
            return (self.head + self.tail).decode(errors="replace")
        head, tail = self.head.decode(errors="replace"), self.tail.decode(errors="replace")
        return f"{head}\n… {self.left_out:,} bytes left out …\n{tail}"


class Notebook:
    """One `__main__` and the cells that were run in it. `hide` maps paths to what tracebacks show instead.

    Names persist, the last expression is echoed, tracebacks start in the cell.
    """

    def __init__(self, hide: Mapping[str, str]) -> None:
        self.hide = sorted(hide.items(), key=lambda item: -len(item[0]))
        self.module = ModuleType("__main__")
        self.cells = 0
        sys.modules["__main__"] = self.module

    def run(self, code: str) -> tuple[str | None, str | None]:
        """Returns the echo of the last expression and the traceback, each None if there is none."""
        self.cells += 1
        name = f"<cell {self.cells}>"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        try:
            return self._evaluate(code, name), None
        except SystemExit as end:
            return None, None if end.code in (None, 0) else f"SystemExit: {end.code}"
        except BaseException as error:
            return None, self._traceback(error)

    def _evaluate(self, code: str, name: str) -> str | None:
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self._execute(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True))
        if not isinstance(last, ast.Expr):
            return None
        expression = ast.Expression(last.value)
        value = self._execute(compile(expression, name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True))
        line = code.split("\n")[(last.end_lineno or 1) - 1].encode()
        if value is None or line[last.end_col_offset or 0 :].lstrip().startswith(b";"):
            return None
        self.module.__dict__["_"] = value
        return repr(value)

    def _execute(self, compiled: CodeType) -> Any:
        value = eval(compiled, self.module.__dict__)  # noqa: S307  running code is its purpose
        if compiled.co_flags & inspect.CO_COROUTINE:
            import asyncio

            return asyncio.run(value)
        return value

    def _traceback(self, error: BaseException) -> str:
        place = error.__traceback__
        while place is not None and not place.tb_frame.f_code.co_filename.startswith("<cell "):
            place = place.tb_next
        try:
            lines = traceback.format_exception(type(error), error, place)
        except BaseException:  # formatting an exception can itself raise
            lines = [f"{type(error).__name__}\n"]
        text = "".join(lines).rstrip("\n")
        for path, seen in self.hide:
            text = text.replace(path, seen)
        return text
