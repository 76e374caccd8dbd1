"""The host side of one sandbox: starts its keeper, sends it requests, watches its memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

from bough.sandbox import group
from bough.sandbox.base import Answer, BrokenError, Result, SandboxError, SandboxLimits
from bough.sandbox.inside import frames, kernel
from bough.sandbox.isolation import Isolation

START_S = 120.0  # a keeper may have large packages to load first
GRACE_S = 20.0  # a keeper enforces time limits itself; one that is this late is broken
WATCH_S = 0.05  # how often memory is counted while a program runs
IDLE_WATCH_S = 1.0  # and between the cells of a session
OBEY_S = 5.0  # a keeper has this long to end a program that uses too much memory


class SandboxWorker:
    """One keeper. It runs one program at a time, or one session."""

    def __init__(
        self,
        isolation: Isolation,
        limits: SandboxLimits,
        command: Callable[[str], tuple[list[str], dict[str, str]]],
        own_mb: float,
    ) -> None:
        """`command` gives the command that starts the keeper in a folder, which itself may use `own_mb`."""
        self.isolation, self.limits, self.command, self.own_mb = isolation, limits, command, own_mb
        self.clean = True
        self._overfull = False
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._busy = asyncio.Event()
        self._group: group.ControlGroup | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    async def start(self) -> None:
        """Starts the keeper and waits until it is ready."""
        # Removed at the latest when this process ends.
        self._folder = tempfile.TemporaryDirectory(prefix="bough-", ignore_cleanup_errors=True)
        start, environment = self.command(self._folder.name)
        self._group = group.make(self.limits, self.own_mb)
        if self._group is not None:
            start = self._group.command(start)
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  ours
                start, env=environment, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                start_new_session=True, cwd="/",
            )  # fmt: skip
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        try:
            await asyncio.wait_for(self._receive(), START_S)
        except (SandboxError, TimeoutError) as error:
            self._kill_processes()
            assert self._process.stderr is not None
            complaint = self._process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
            self.kill()
            raise SandboxError(f"the sandbox did not start ({self.isolation}): {complaint or error}") from error
        except BaseException:
            self.kill()
            raise
        self._watch = asyncio.create_task(self._watch_memory())

    async def run(
        self, code: str, *, timeout_s: float | None = None, keep: bool = False, answer: Answer | None = None
    ) -> Result:
        """Runs a program, or with `keep` a cell of the session that runs here. It may ask `answer`."""
        timeout_s = self.limits.timeout_s if timeout_s is None else timeout_s
        code = code.encode(errors="replace").decode()
        self._busy.set()
        try:
            asks = answer is not None
            request = {"op": "run", "code": code, "timeout_s": timeout_s, "keep": keep, "asks": asks}
            return self._result(await asyncio.wait_for(self._ask(request, answer), timeout_s + GRACE_S))
        except BaseException as error:
            self.kill()  # an answer that arrives later would be taken for that of the next request
            if isinstance(error, TimeoutError):
                raise BrokenError(f"the sandbox did not answer within {timeout_s + GRACE_S:g} s") from None
            raise
        finally:
            self._busy.clear()

    async def reset(self) -> None:
        """Ends the session that runs here and removes its files."""
        try:
            answer = await asyncio.wait_for(self._ask({"op": "reset"}), GRACE_S)
            self.clean = answer.get("clean") is True
        except (SandboxError, TimeoutError):
            self.clean = False
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Kills everything in the sandbox."""
        self.clean = False
        if self._process is None:
            return
        if self._watch is not None:
            self._watch.cancel()
        with contextlib.suppress(AttributeError):
            self._writer.close()
        self._kill_processes()
        self._process.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._process = None
        if self._group is not None:
            self._group.remove()
        if self._folder is not None:
            self._folder.cleanup()

    def _kill_processes(self) -> None:
        assert self._process is not None
        for pid in [self._process.pid, *kernel.descendants(self._process.pid)]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def _ask(self, request: dict[str, Any], answer: Answer | None = None) -> dict[str, Any]:
        await self._send(request)
        while "ask" in (message := await self._receive()):
            if answer is None or not isinstance(message["ask"], str):
                raise BrokenError("the sandbox asked a question that it may not ask")
            await self._send({"op": "answer", "answer": await answer(message["ask"])})
        return message

    async def _send(self, request: dict[str, Any]) -> None:
        if self._process is None:
            raise BrokenError("the sandbox was ended") if self._overfull else SandboxError("the sandbox is closed")
        self._writer.write(frames.pack(request))
        try:
            await self._writer.drain()
        except OSError as error:
            raise BrokenError(f"the sandbox is gone: {error}") from error

    async def _receive(self) -> dict[str, Any]:
        try:
            length = frames.LENGTH.unpack(await self._reader.readexactly(frames.LENGTH.size))[0]
            if length > frames.MOST:
                raise ValueError(f"a message of {length} bytes")
            return frames.parse(await self._reader.readexactly(length))
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            raise BrokenError(f"the sandbox broke: {error}") from error

    async def _watch_memory(self) -> None:
        """Ends everything that runs here when it uses too much memory in total, also between cells."""
        told = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._busy.wait(), WATCH_S if told else IDLE_WATCH_S)
            await asyncio.sleep(WATCH_S)
            below = kernel.descendants(self._process.pid) if self._process else []
            used_mb = kernel.memory_mb(below)
            if below and self.isolation != "none":
                used_mb += kernel.sockets_mb(below[0])
            if used_mb <= self.limits.memory_mb + self.own_mb:
                told = 0.0
            elif not told:
                told = time.monotonic()
                self._writer.write(frames.pack({"op": "kill", "why": "memory"}))
            elif time.monotonic() - told > OBEY_S:
                self._overfull = True
                self.kill()

    def _result(self, answer: dict[str, Any]) -> Result:
        try:
            self.clean = answer.pop("clean") is True
            texts = {key: _text(answer.pop(key)) for key in ("stdout", "stderr", "value", "error")}
            return Result(**texts, **answer)  # type: ignore[arg-type]
        except (KeyError, TypeError) as error:
            raise BrokenError(f"the sandbox's answer has an unexpected form: {error}") from error


def _text(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError("a text was expected")
    # Half a surrogate pair is a text to Python, but to no file.
    return value.encode(errors="replace").decode()
