"""A client of the Chrome DevTools Protocol over a pair of pipes: JSON messages that end in a zero byte.

Calls may be under way in any number. When the other side is gone every one of them,
and every later one, raises `EnvironmentFailedError`: what was asked of a dead browser has no answer.
"""

from __future__ import annotations

import asyncio
import json
from io import FileIO
from typing import Any

from bough.environments.base import EnvironmentFailedError

CALL_TIMEOUT_S = 60.0


class Connection(asyncio.Protocol):
    """Our end of the pipes. The messages of a page carry its session's id."""

    def __init__(self) -> None:
        self.lost: str | None = None
        self._reader: asyncio.ReadTransport | None = None
        self._writer: asyncio.WriteTransport | None = None
        self._unread = bytearray()
        self._number = 0
        self._answers: dict[int, tuple[str, asyncio.Future[dict[str, Any]]]] = {}
        self._events: dict[tuple[str, str], asyncio.Future[dict[str, Any]]] = {}
        self._crashed: set[str] = set()

    async def open(self, read_fd: int, write_fd: int) -> None:
        loop = asyncio.get_running_loop()
        reading, writing = FileIO(read_fd, "rb"), FileIO(write_fd, "wb")
        self._reader, _ = await loop.connect_read_pipe(lambda: self, reading)
        self._writer, _ = await loop.connect_write_pipe(lambda: _Writing(self), writing)

    async def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """The browser's answer. A browser that takes longer than a minute counts as dead."""
        if self.lost or session in self._crashed:
            raise EnvironmentFailedError(self.lost or "a page of the browser crashed")
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        answer = asyncio.get_running_loop().create_future()
        self._answers[self._number] = (session, answer)
        assert self._writer is not None
        if self._writer.is_closing():
            self.close("the browser died")
        else:
            self._writer.write(json.dumps(message).encode() + b"\0")
        return await self._wait(answer, method)

    def next_event(self, session: str, method: str) -> asyncio.Future[dict[str, Any]]:
        """The next event of that name. Ask before doing what brings it about."""
        event = asyncio.get_running_loop().create_future()
        self._events[session, method] = event
        return event

    async def arrival(self, event: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        """Waits for what `next_event` promised."""
        return await self._wait(event, "an event")

    def data_received(self, data: bytes) -> None:
        *complete, rest = (self._unread + data).split(b"\0") if b"\0" in data else ((self._unread + data),)
        self._unread = bytearray(rest)
        for message in complete:
            self._receive(json.loads(message))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.close("the browser died")

    def close(self, why: str = "the browser was closed") -> None:
        """Fails all pending calls. May be called twice."""
        self.lost = self.lost or why
        waiting = [*(future for _, future in self._answers.values()), *self._events.values()]
        self._answers.clear()
        self._events.clear()
        for future in waiting:
            _fail(future, self.lost)
        if self._writer is not None and not self._writer.is_closing():
            self._writer.abort()
        if self._reader is not None and not self._reader.is_closing():
            self._reader.close()

    def _receive(self, message: dict[str, Any]) -> None:
        if "id" in message:
            _, answer = self._answers.pop(message["id"], ("", None))
            if answer is None or answer.done():
                return
            if "error" in message:
                answer.set_exception(EnvironmentFailedError(f"the browser refused: {message['error'].get('message')}"))
            else:
                answer.set_result(message["result"])
            return
        method, parameters = message["method"], message.get("params", {})
        session = message.get("sessionId", "")
        if method == "Inspector.targetCrashed":
            self._page_is_gone(session)
        elif method == "Target.detachedFromTarget":
            self._page_is_gone(parameters["sessionId"])
        event = self._events.pop((session, method), None)
        if event is not None and not event.done():
            event.set_result(parameters)

    def _page_is_gone(self, session: str) -> None:
        self._crashed.add(session)
        for number, (owner, answer) in list(self._answers.items()):
            if owner == session:
                del self._answers[number]
                _fail(answer, "a page of the browser crashed")
        for owner, method in list(self._events):
            if owner == session:
                _fail(self._events.pop((owner, method)), "a page of the browser crashed")

    async def _wait(self, future: asyncio.Future[dict[str, Any]], what: str) -> dict[str, Any]:
        try:
            return await asyncio.wait_for(future, CALL_TIMEOUT_S)
        except TimeoutError:
            raise EnvironmentFailedError(f"the browser did not answer {what} within {CALL_TIMEOUT_S:.0f} s") from None


class _Writing(asyncio.BaseProtocol):
    """The write pipe's side of the protocol: whichever of the two breaks first ends the connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.connection.close("the browser died")


def _fail(future: asyncio.Future[dict[str, Any]], why: str) -> None:
    if not future.done():
        future.set_exception(EnvironmentFailedError(why))
        future.exception()  # marks it as retrieved: there may be no task left that waits for it
