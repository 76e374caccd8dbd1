"""The first process of a sandbox: forks a process for each program, reads its results, kills what is left.

The keeper runs as the same user as the programs. They cannot reach it: the kernel blocks
signals from inside a namespace to its first process, a process that is not dumpable cannot
be traced or read, and the programs inherit none of its file descriptors.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import shutil
import signal
import sys
import time
from typing import Any, NoReturn

from bough.sandbox.inside import child, frames, kernel, processes, seccomp
from bough.sandbox.inside.cell import Cell, Process
from bough.sandbox.inside.launch import INODES

STOP_AGAIN_S = 1.0
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)  # as in Python itself: they are raised as exceptions


class Keeper:
    """Serves one host over `control`."""

    def __init__(self, control: int, settings: dict[str, Any]) -> None:
        self.control, self.settings = control, settings
        self.alone = bool(settings["alone"]) and os.getpid() == 1
        self.filter: bytes | None = None
        self.process: Process | None = None
        self.killed: str | None = None  # why the session was ended between two cells

    def serve(self) -> None:
        self._prepare()
        frames.send(self.control, {"ready": True})
        while (request := self._next()) is not None:
            if request["op"] == "run":
                answer = self._run(request)
                del request  # the next program's memory is a copy of this process's
                frames.send(self.control, answer)
            elif request["op"] == "reset":
                self._end()
                frames.send(self.control, {"clean": self._wipe()})
            elif request["op"] == "kill" and self.process is not None:
                self._end()
                self.killed = request["why"]
        self._end()

    def _next(self) -> dict[str, Any] | None:
        """Waits for the next request. Until it arrives, all processes of the session are stopped."""
        while self.process is not None and not select.select([self.control], [], [], STOP_AGAIN_S)[0]:
            # A process that ended while the others were being stopped may have woken another.
            self._signal(signal.SIGSTOP)
        return frames.receive(self.control)

    def _prepare(self) -> None:
        if self.alone:
            self._give_up_rights()
        sys.path += self.settings["packages"]
        exec(self.settings["warm_up"], {})  # noqa: S102  code of the host, run once for all programs
        gc.collect()
        gc.freeze()  # garbage collection would copy the pages of these objects into each program's memory
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with contextlib.suppress(OSError, ValueError):
                # With a handler, the first process of a namespace would receive this signal from inside.
                signal.signal(number, signal.SIG_IGN if number in IGNORED else signal.SIG_DFL)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if self.alone:
            self.filter = seccomp.program()
        else:
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)

    def _give_up_rights(self) -> None:
        for folder in self.settings["remount"]:
            flags = kernel.MS_REMOUNT | kernel.MS_NOSUID | kernel.MS_NODEV
            kernel.mount("tmpfs", folder, None, flags, f"nr_inodes={INODES}")
        if os.geteuid() == 0:
            kernel.become_nobody()
        elif self.settings["remount"]:
            kernel.drop_capabilities()

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        if self.process is None:
            self.process = self._fork()
        begin = time.monotonic()
        cell = Cell(self.process, request, self.settings)
        cell.killed = cell.killed or self.killed
        if not cell.over:
            self._signal(signal.SIGCONT)
        while not cell.over:
            cell.attend(self.control)
        keep = request["keep"] and cell.answer is not None and not cell.exited
        if keep:
            self._signal(signal.SIGSTOP)
        status = None if keep else self._end()
        cell.drain(to_the_end=not keep)
        return cell.outcome(status) | {
            "alive": keep,
            "clean": keep or self._wipe(),
            "duration_s": time.monotonic() - begin,
        }

    def _fork(self) -> Process:
        code, result, stdout, stderr = (os.pipe() for _ in range(4))
        pid = os.fork()
        if pid == 0:
            child.live(child.Pipes(code[0], result[1], stdout[1], stderr[1]), self.settings, self.filter)
        for end in (code[0], result[1], stdout[1], stderr[1]):
            os.close(end)
        ours = (code[1], result[0], stdout[0], stderr[0])
        for end in ours:
            os.set_blocking(end, False)
        return Process(pid, os.pidfd_open(pid), *ours)

    def _end(self) -> int | None:
        """Kills and reaps every other process; returns the program's exit status if it had already ended."""
        if self.process is None:
            return None
        status = None
        with contextlib.suppress(ChildProcessError):
            pid, found = os.waitpid(self.process.pid, os.WNOHANG)
            status = found if pid else None
        if self.alone:
            self._signal(signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.waitpid(-1, 0)
        else:
            self._hunt()
        return status

    def _hunt(self) -> None:
        """Kills the descendants one by one: without a namespace there is no other way."""
        patience = time.monotonic() + 5
        while processes.descendants(os.getpid()) and time.monotonic() < patience:
            self._signal(signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass

    def _signal(self, number: signal.Signals) -> None:
        """Sends a signal to every process but this one."""
        # In a separate namespace one call reaches all of them, so no process can escape by forking.
        for pid in [-1] if self.alone else processes.descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def _let_go(self) -> None:
        assert self.process is not None
        for file in self.process[1:]:
            os.close(file)
        self.process = self.killed = None

    def _wipe(self) -> bool:
        """Empties the scratch folders; returns False if that fails, and the sandbox must be discarded."""
        if self.process is not None:
            self._let_go()
        try:
            for folder in self.settings["wipe"]:
                for name in os.listdir(folder):  # noqa: PTH208
                    path = os.path.join(folder, name)  # noqa: PTH118
                    if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114
                        shutil.rmtree(path)
                    else:
                        os.unlink(path)  # noqa: PTH108
        except (OSError, RecursionError):
            return False
        return True


def main(settings: dict[str, Any]) -> NoReturn:
    """Moves the control socket away from standard input, so that no program inherits it."""
    control = os.dup(0)
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    Keeper(control, settings).serve()
    os._exit(0)
