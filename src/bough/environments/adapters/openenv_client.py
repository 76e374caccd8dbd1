"""OpenEnv's protocol: JSON over a WebSocket, one session per connection.

    {"type": "reset", "data": {"seed": 7}} or {"type": "step", "data": {…the action…}}
    → {"type": "observation", "data": {"observation": {…}, "reward": 0.0, "done": false}}
    → {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": …}}

`GET /schema` describes the action. Any failure of the server is an EnvironmentFailedError.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from typing import Any

import httpx2
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from bough.environments.base import EnvironmentFailedError
from bough.errors import exception_line

MAX_BYTES = 100 * 2**20
MAX_SCHEMA = 4 * 2**20
CONNECT_S = 10.0
# What reading an answer raises that is not of the agreed form.
MALFORMED = (ValueError, LookupError, TypeError, RecursionError)
# Waits between two tries on a server whose sessions are all taken.
FIRST_WAIT_S, MAX_WAIT_S = 0.1, 2.0


class RefusedActionError(Exception):
    """The action does not fit the schema: the agent's mistake. The message says what is wrong."""


class _FullError(Exception):
    """All sessions of the server are taken."""


class OpenEnvConnection:
    """A session on a server."""

    def __init__(self, url: str) -> None:
        self.http_url, self.ws_url = urls(url)
        self._socket: ClientConnection | None = None

    async def schema(self) -> dict[str, Any]:
        """The JSON schema of the action."""
        try:
            async with asyncio.timeout(CONNECT_S):
                action = json.loads(await self._get("/schema"))["action"]
        except (httpx2.HTTPError, TimeoutError, *MALFORMED) as error:
            raise self._failure("does not describe its actions", error) from error
        if not _is_schema(action):
            raise self._failure("describes its actions by something that is not a schema", None)
        return dict(action)

    async def _get(self, path: str) -> bytes:
        """The content at an address. Not compressed: its size could not be limited."""
        content = bytearray()
        headers = {"Accept-Encoding": "identity"}
        async with (
            httpx2.AsyncClient(timeout=CONNECT_S, headers=headers) as client,
            client.stream("GET", self.http_url + path) as answer,
        ):
            answer.raise_for_status()
            async for piece in answer.aiter_raw():
                content += piece
                if len(content) > MAX_SCHEMA:
                    raise ValueError(f"{path} is larger than {MAX_SCHEMA >> 20} MiB")
        return bytes(content)

    async def first(self, kind: str, data: dict[str, Any], *, patience_s: float) -> dict[str, Any]:
        """Opens a session and sends its first request; waits where all sessions of the server are taken."""
        loop, wait_s = asyncio.get_running_loop(), FIRST_WAIT_S
        deadline = loop.time() + patience_s
        while True:
            try:
                self._socket = await connect(self.ws_url, max_size=MAX_BYTES, open_timeout=CONNECT_S)
            except (WebSocketException, OSError) as error:
                raise self._failure("cannot be reached", error) from error
            try:
                return await self.request(kind, data)
            except _FullError as full:
                await self.close()
                if loop.time() + wait_s > deadline:
                    raise self._failure(f"is full; lower --concurrency ({full})", None) from None
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, MAX_WAIT_S)

    async def request(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """The data of the observation that answers a request. Raises RefusedActionError for an invalid action."""
        if self._socket is None:
            raise EnvironmentFailedError("the connection to the OpenEnv server is closed")
        try:
            # A full server closes the connection immediately; what it said before that can still be read.
            with suppress(ConnectionClosed):
                await self._socket.send(json.dumps({"type": kind, "data": data}))
            text = await self._socket.recv()
        except (WebSocketException, OSError) as error:
            raise self._failure(f"failed at {kind}", error) from error
        try:
            answer = json.loads(text)
            what, content = answer["type"], answer["data"]
            if what == "observation" and isinstance(content["observation"], dict):
                _check_step(content.get("reward"), content.get("done"))
                return dict(content)
            code, message = content["code"], str(content["message"])
        except MALFORMED as error:
            raise self._failure(f"answered {kind} with {text!r:.200}", None) from error
        if code == "CAPACITY_REACHED":
            raise _FullError(message)
        if code == "VALIDATION_ERROR" and kind == "step":
            raise RefusedActionError(_explain(content.get("errors"), message))
        raise self._failure(f"failed at {kind}: {code}: {message:.300}", None)

    async def close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            try:
                await socket.send(json.dumps({"type": "close"}))
            except (WebSocketException, OSError):
                return
            await socket.close()

    def _failure(self, what: str, error: BaseException | None) -> EnvironmentFailedError:
        why = "" if error is None else f": {exception_line(error, 300)}"
        return EnvironmentFailedError(f"the OpenEnv server at {self.http_url} {what}{why}")


def _check_step(reward: Any, done: Any) -> None:
    """Raises ValueError for a reward that is not a finite number, and for an end that is neither true nor false."""
    if reward is not None and not (isinstance(reward, int | float) and abs(reward) <= sys.float_info.max):
        raise ValueError("the reward is not a finite number")
    if not isinstance(done, bool | None):
        raise ValueError("done is neither true nor false")


def _is_schema(action: Any) -> bool:
    """Whether this describes an object: its fields, and which of them are required."""
    fields = action.get("properties", {}) if isinstance(action, dict) else None
    return (
        isinstance(fields, dict)
        and all(isinstance(field, dict) for field in fields.values())
        and isinstance(action.get("required", []), list)
    )


def urls(url: str) -> tuple[str, str]:
    """The addresses of a server for HTTP and for its WebSocket."""
    scheme, separator, rest = url.rstrip("/").partition("://")
    if not separator:
        scheme, rest = "http", scheme
    secure = scheme in ("https", "wss")
    return f"http{'s' * secure}://{rest}", f"ws{'s' * secure}://{rest}/ws"


def _explain(errors: Any, message: str) -> str:
    """The problems of an action as the server's validation lists them."""
    try:
        return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in errors[:10]) or message
    except (LookupError, TypeError):
        return message
