"""One running cell, as the keeper sees it: its code, its output, its result, its time limit.

A cell that is allowed to ask the host questions sends them over the same pipe, one at a time.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from itertools import count
from typing import Any, NamedTuple

from bough.sandbox.inside import frames
from bough.sandbox.inside.output import Output

CHUNK = 1 << 18
NUMBERS = count(1)
GRACE_S = 1.0  # time for an interrupted cell to end


class Process(NamedTuple):
    """A running child and our ends of its pipes."""

    pid: int
    exit: int
    code: int
    result: int
    stdout: int
    stderr: int


class Cell:
    """One running cell: its input, its outputs, its deadline."""

    def __init__(self, process: Process, request: dict[str, Any], settings: dict[str, Any]) -> None:
        self.process = process
        self.number = next(NUMBERS)
        asked = {key: request[key] for key in ("code", "keep", "asks")} | {"number": self.number}
        self.unsent = memoryview(frames.pack(asked))
        self.interruptible, self.asks = request["keep"], request["asks"]
        self.question: str | None = None
        self.deadline = time.monotonic() + request["timeout_s"]
        self.outputs = {end: Output(settings["output_bytes"]) for end in (process.stdout, process.stderr)}
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
        events = self.poller.poll(max(0.0, self.deadline - time.monotonic()) * 1000)
        for file, _ in events:
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
        if time.monotonic() >= self.deadline and not self.over:
            self._out_of_time()

    def drain(self, *, to_the_end: bool) -> None:
        """Reads what the program has written so far; `to_the_end` when no process can write any more."""
        for file in self.outputs:
            reads = 0
            while (to_the_end or reads < 64) and self._read_output(file):
                reads += 1

    def outcome(self, status: int | None) -> dict[str, Any]:
        """The result of the cell."""
        stdout, stderr = self.outputs.values()
        answer = self.answer or {}
        value, error = answer.get("value"), answer.get("error")
        if self.answer is None and self.killed is None:
            if status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
                self.killed = "cpu"
            else:
                error = _ending(status)
        return {
            "stdout": stdout.text,
            "stderr": stderr.text,
            "value": value,
            "error": error,
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
            if not self.asks or "ask" not in message:
                if message.get("number") != self.number:
                    raise ValueError("the answer of another cell")
                self.answer = {key: _text(message.get(key)) for key in ("value", "error")}
            elif self.question is None and not self.unsent:
                self.question = _text(message["ask"]) or ""
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

    def _out_of_time(self) -> None:
        if self.interruptible and not self.timed_out:
            self.deadline += GRACE_S
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGINT)
        else:
            self.killed = "time"
        self.timed_out = True


def _text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError("not a text")
    return value


def _ending(status: int | None) -> str:
    if status is None:
        return "The process ended before its result could be read."
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"The process was killed by {signal.Signals(number).name}."
        except ValueError:
            return f"The process was killed by signal {number}."
    return f"The process exited with status {os.WEXITSTATUS(status)} before the end of the code."
