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
from itertools import count
from typing import Any, NamedTuple, NoReturn

from bough.sandbox.inside import child, frames, kernel, seccomp
from bough.sandbox.inside.launch import INODES

STOP_AGAIN_S = 1.0
GRACE_S = 1.0  # time for an interrupted cell to end
CHUNK = 1 << 18
NUMBERS = count(1)
SIGNALS = {number.value: number.name for number in signal.Signals}
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)  # as in Python itself: they are raised as exceptions


class Process(NamedTuple):
    """A running child and our ends of its pipes."""

    pid: int
    exit: int
    code: int
    result: int
    stdout: int
    stderr: int


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
            for folder in self.settings["remount"]:
                flags = kernel.MS_REMOUNT | kernel.MS_NOSUID | kernel.MS_NODEV
                kernel.mount("tmpfs", folder, None, flags, f"nr_inodes={INODES}")
            if os.geteuid() == 0:
                kernel.become_nobody()
            elif self.settings["remount"]:
                kernel.drop_capabilities()
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

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        if self.process is None:
            self.process = self._fork()
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
        clean = keep or self._wipe()
        return cell.outcome(status) | {"alive": keep, "clean": clean}

    def _fork(self) -> Process:
        code, result, stdout, stderr = (os.pipe() for _ in range(4))
        theirs = (code[0], result[1], stdout[1], stderr[1])
        pid = os.fork()
        if pid == 0:
            child.live(theirs, self.settings, self.filter)
        for end in theirs:
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
        # Without a namespace the descendants are killed one by one: there is no other way.
        patience = time.monotonic() + 5
        while not self.alone and kernel.descendants(os.getpid()) and time.monotonic() < patience:
            self._signal(signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
        return status

    def _signal(self, number: signal.Signals) -> None:
        """Sends a signal to every process but this one."""
        # In a separate namespace one call reaches all of them, so no process can escape by forking.
        for pid in [-1] if self.alone else kernel.descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def _wipe(self) -> bool:
        """Empties the scratch folders; returns False if that fails, and the sandbox must be discarded."""
        for file in self.process[1:] if self.process is not None else ():
            os.close(file)
        self.process = self.killed = None
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


class Cell:
    """One running cell: its code, its output, its result, its deadline.

    A cell that is allowed to ask the host questions sends them over the pipe of its result, one at a time.
    """

    def __init__(self, process: Process, request: dict[str, Any], settings: dict[str, Any]) -> None:
        self.process = process
        self.number = next(NUMBERS)
        asked = {key: request[key] for key in ("code", "keep", "asks")} | {"number": self.number}
        self.unsent = memoryview(frames.pack(asked))
        self.interruptible, self.asks = request["keep"], request["asks"]
        self.question: str | None = None
        self.deadline = time.monotonic() + request["timeout_s"]
        self.outputs = {end: child.Output(settings["output_bytes"]) for end in (process.stdout, process.stderr)}
        self.most = 16 * settings["output_bytes"] + (1 << 16)
        self.received = bytearray()
        self.answer: dict[str, Any] | None = None
        self.killed: str | None = None
        self.timed_out = self.exited = False
        self.poller = select.poll()
        for file in (process.exit, process.result, *self.outputs):
            self.poller.register(file, select.POLLIN)
        self.poller.register(process.code, select.POLLOUT)
        self._read_result()
        if self.received:  # no request was sent yet, so the program itself wrote to this pipe
            self.answer, self.killed = None, "garbage"

    @property
    def over(self) -> bool:
        return self.exited or self.answer is not None or self.killed is not None

    def attend(self, control: int) -> None:
        """Waits for the next event and handles it."""
        self.poller.register(control, select.POLLIN)
        for file, _ in self.poller.poll(max(0.0, self.deadline - time.monotonic()) * 1000):
            if file == control:
                self._hear(control)
            elif file == self.process.code:
                self._write()
            elif file == self.process.result:
                waiting = self.question is not None
                self._read_result()
                if self.question is not None and not waiting:
                    frames.send(control, {"ask": self.question})
            elif file in self.outputs:
                if not self._read_output(file):
                    self.poller.unregister(file)
            else:
                self._read_result()
                self.exited = True
        if time.monotonic() < self.deadline or self.over:
            return
        if self.interruptible and not self.timed_out:
            self.deadline += GRACE_S
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGINT)
        else:
            self.killed = "time"
        self.timed_out = True

    def drain(self, *, to_the_end: bool) -> None:
        """Reads what the program has written so far; `to_the_end` when no process can write any more."""
        for file in self.outputs:
            reads = 0
            while (to_the_end or reads < 64) and self._read_output(file):
                reads += 1

    def outcome(self, status: int | None) -> dict[str, Any]:
        """The result of the cell."""
        stdout, stderr = self.outputs.values()
        answer = self.answer or {"value": None, "error": None}
        if self.answer is None and self.killed is None:
            number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
            if number == signal.SIGXCPU:
                self.killed = "cpu"
            elif status is None:
                answer["error"] = "The process ended before its result could be read."
            elif number is not None:
                answer["error"] = f"The process was killed by {SIGNALS.get(number, f'signal {number}')}."
            else:
                code = os.WEXITSTATUS(status)
                answer["error"] = f"The process exited with status {code} before the end of the code."
        return answer | {
            "stdout": stdout.text,
            "stderr": stderr.text,
            "timed_out": self.timed_out,
            "killed": self.killed,
            "truncated": bool(stdout.left_out or stderr.left_out),
        }

    def _hear(self, control: int) -> None:
        message = frames.receive(control)
        if message is None:
            os._exit(0)  # the host has ended; when the first process exits, its whole namespace ends
        if message["op"] == "kill":
            self.killed = message["why"]
        elif message["op"] == "answer" and self.question is not None:
            self.question = None
            self.unsent = memoryview(frames.pack({"answer": message["answer"]}))
            self.poller.register(self.process.code, select.POLLOUT)

    def _write(self) -> None:
        try:
            self.unsent = self.unsent[os.write(self.process.code, self.unsent[:CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            self.unsent = self.unsent[:0]
        if not self.unsent:
            self.poller.unregister(self.process.code)

    def _read_result(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.process.result, CHUNK)
            if not data:
                with contextlib.suppress(KeyError):
                    self.poller.unregister(self.process.result)
                return
            self.received += data
        try:
            message = frames.unpack(self.received, self.most)
            if message is None:
                return
            if not all(isinstance(message.get(key), str | None) for key in ("value", "error", "ask")):
                raise ValueError("not a text")
            if not self.asks or "ask" not in message:
                if message.get("number") != self.number:
                    raise ValueError("the answer of another cell")
                self.answer = {key: message.get(key) for key in ("value", "error")}
            elif self.question is None and not self.unsent:
                self.question = message["ask"] or ""
                self.received.clear()
            else:
                raise ValueError("a question before the last one was answered")
        except ValueError:
            self.killed = "garbage"

    def _read_output(self, file: int) -> bool:
        try:
            data = os.read(file, CHUNK)
        except BlockingIOError:
            return False
        self.outputs[file].add(data)
        return bool(data)


def main(settings: dict[str, Any]) -> NoReturn:
    """Moves the control socket away from standard input, so that no program inherits it."""
    control = os.dup(0)
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    Keeper(control, settings).serve()
    os._exit(0)
