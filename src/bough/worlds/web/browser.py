"""One Chromium: found, started with pipes instead of a port, and ended with this process.

The headless shell is preferred: it does twice as many episodes a second as the whole
browser. Chromium exits by itself when its pipes close, so that not even a killed
process of ours leaves one behind.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from io import FileIO
from pathlib import Path
from typing import Any

from bough.environments.base import EnvironmentFailedError
from bough.errors import InputError
from bough.files import cache_folder

PROGRAMS = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome")
VARIABLE = "BOUGH_CHROMIUM"
NONE_FOUND = "No Chromium was found on this machine. Install one with: bough env setup web"
FOLDER, UNPACKED = "browsers", "chromium"  # of the cache: browsers that were unpacked there, and their program
WIDTH, HEIGHT = 500, 320
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    # The pages are files of ours and nothing else can be reached; its own sandbox does not start as root.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--disable-crash-reporter",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-zygote",
    "--hide-scrollbars",
    "--mute-audio",
    "--force-device-scale-factor=1",
    "--lang=en-US",
    "--allow-file-access-from-files",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    f"--window-size={WIDTH},{HEIGHT}",
)


def find() -> str | None:
    """The browser's program, or None: the one that BOUGH_CHROMIUM names, `bough env setup web` unpacked, or is on PATH.

    An unpacked one is there only because none on the PATH could play.
    """
    named = os.environ.get(VARIABLE)
    if named:
        path = shutil.which(named)
        if path is None:
            raise InputError(f"{VARIABLE} is {named!r}, which is not a program")
        return path
    unpacked = sorted(map(str, (cache_folder() / FOLDER).glob(f"[!.]*/{UNPACKED}")))
    return next((path for path in map(shutil.which, (*unpacked, *PROGRAMS)) if path), None)


class Browser:
    """A running Chromium. Use `await Browser.start()`."""

    def __init__(self, pid: int, profile: Path) -> None:
        self.pid, self.profile = pid, profile
        self.connection = Connection()
        self._gone = False

    @classmethod
    async def start(cls, program: str | None = None) -> Browser:
        program = program or find()
        if program is None:
            raise InputError(NONE_FOUND)
        profile = Path(tempfile.mkdtemp(prefix="bough-chromium-"))
        theirs_read, ours_write = _pipe()
        ours_read, theirs_write = _pipe()
        try:
            pid = _spawn([program, *FLAGS, f"--user-data-dir={profile}"], theirs_read, theirs_write)
        except OSError as error:
            os.close(ours_read)
            os.close(ours_write)
            shutil.rmtree(profile, ignore_errors=True)
            raise EnvironmentFailedError(f"{program} does not start: {error.strerror}") from error
        finally:
            os.close(theirs_read)
            os.close(theirs_write)
        browser = cls(pid, profile)
        atexit.register(browser.kill)
        try:
            await browser.connection.open(ours_read, ours_write)
            await browser.connection.call("Browser.getVersion")
        except BaseException:
            browser.kill()
            raise
        return browser

    @property
    def alive(self) -> bool:
        return not self._gone and self.connection.lost is None

    def kill(self) -> None:
        """Kills the browser. May be called twice, and without a running loop."""
        if self._gone:
            return
        self._gone = True
        atexit.unregister(self.kill)
        with contextlib.suppress(RuntimeError):  # the loop of the pipes may be closed already
            self.connection.close()
        # With SIGTERM it waits for its own children; with SIGKILL it would leave them to process 1.
        if not self._ended(signal.SIGTERM, within_s=2.0):
            self._ended(signal.SIGKILL, within_s=10.0)
        # A helper process may outlive Chromium by a moment and write files that were just removed.
        end = time.monotonic() + 5.0
        while self.profile.exists() and time.monotonic() < end:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            shutil.rmtree(self.profile, ignore_errors=True)
            time.sleep(0.01)

    def _ended(self, how: signal.Signals, *, within_s: float) -> bool:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, how)
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            try:
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    return True
            except ChildProcessError:
                return True
            time.sleep(0.01)
        return False


def _pipe() -> tuple[int, int]:
    """A pipe whose ends lie above the numbers that Chromium wants its own at."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in low)
    for fd in low:
        os.close(fd)
    return high[0], high[1]


def _spawn(command: list[str], read_fd: int, write_fd: int) -> int:
    """Starts Chromium with its pipes at 3 and 4, in a process group of its own.

    Not `subprocess`: it can pass descriptors on, but not at another number without
    running Python between fork and exec, which is not safe beside threads.
    """
    environment = {**os.environ, "TZ": "UTC", "LANG": "C.UTF-8"}
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, read_fd, 3),
        (os.POSIX_SPAWN_DUP2, write_fd, 4),
    ]
    return os.posix_spawn(command[0], command, environment, file_actions=actions, setpgroup=0)


# A client of the Chrome DevTools Protocol over a pair of pipes: JSON messages that end in a zero byte.
# Calls may be under way in any number. When the other side is gone every one of them, and every later one, raises
# `EnvironmentFailedError`: what was asked of a dead browser has no answer.

CALL_TIMEOUT_S = 60.0


class Connection(asyncio.Protocol):
    """Our end of the pipes. The messages of a page carry its session's id."""

    def __init__(self) -> None:
        self.lost: str | None = None
        self._reader: asyncio.ReadTransport | None = None
        self._writer: asyncio.WriteTransport | None = None
        self._unread = bytearray()
        self._number = 0
        # By the number of a call or by session and name of an event: the session, and what is waited for.
        self._waiting: dict[int | tuple[str, str], tuple[str, asyncio.Future[dict[str, Any]]]] = {}
        self._crashed: set[str] = set()

    async def open(self, read_fd: int, write_fd: int) -> None:
        loop = asyncio.get_running_loop()
        reading, writing = FileIO(read_fd, "rb"), FileIO(write_fd, "wb")
        self._reader, _ = await loop.connect_read_pipe(lambda: self, reading)
        self._writer, _ = await loop.connect_write_pipe(lambda: self, writing)

    async def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """The browser's answer. A browser that takes longer than a minute counts as dead."""
        if self.lost or session in self._crashed:
            raise EnvironmentFailedError(self.lost or "a page of the browser crashed")
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        answer = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = (session, answer)
        assert self._writer is not None
        if self._writer.is_closing():
            self.close("the browser died")
        else:
            self._writer.write(json.dumps(message).encode() + b"\0")
        return await self.arrival(answer, method)

    def next_event(self, session: str, method: str) -> asyncio.Future[dict[str, Any]]:
        """The next event of that name. Ask before doing what brings it about."""
        event = asyncio.get_running_loop().create_future()
        self._waiting[session, method] = (session, event)
        return event

    async def arrival(self, future: asyncio.Future[dict[str, Any]], what: str = "an event") -> dict[str, Any]:
        """Waits for an answer, or for what `next_event` promised."""
        try:
            return await asyncio.wait_for(future, CALL_TIMEOUT_S)
        except TimeoutError:
            raise EnvironmentFailedError(f"the browser did not answer {what} within {CALL_TIMEOUT_S:.0f} s") from None

    def data_received(self, data: bytes) -> None:
        *complete, self._unread = (self._unread + data).split(b"\0")
        for message in complete:
            self._receive(json.loads(message))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Of either pipe: whichever breaks first ends the connection."""
        self.close("the browser died")

    def close(self, why: str = "the browser was closed") -> None:
        """Fails all pending calls. May be called twice."""
        self.lost = self.lost or why
        self._fail(self.lost)
        if self._writer is not None and not self._writer.is_closing():
            self._writer.abort()
        if self._reader is not None and not self._reader.is_closing():
            self._reader.close()

    def _receive(self, message: dict[str, Any]) -> None:
        session, parameters = message.get("sessionId", ""), message.get("params", {})
        key = message["id"] if "id" in message else (session, message["method"])
        if message.get("method") in ("Inspector.targetCrashed", "Target.detachedFromTarget"):
            gone = parameters.get("sessionId", session)
            self._crashed.add(gone)
            self._fail("a page of the browser crashed", gone)
        _, future = self._waiting.pop(key, ("", None))
        if future is None or future.done():
            return
        if "error" in message:
            future.set_exception(EnvironmentFailedError(f"the browser refused: {message['error'].get('message')}"))
        else:
            future.set_result(message.get("result", parameters))

    def _fail(self, why: str, session: str | None = None) -> None:
        """Fails what is waited for, of one page or of all."""
        for key, (owner, future) in list(self._waiting.items()):
            if session in (None, owner):
                del self._waiting[key]
                if not future.done():
                    future.set_exception(EnvironmentFailedError(why))
                    future.exception()  # marks it as retrieved: there may be no task left that waits for it
