"""A server that answers JSON: one address, one key, time limits, retries and a limit on concurrent requests.

What may pass by itself (a busy or restarting server, a broken connection, an answer cut short) is
tried again, with growing waits. What will not pass is an error in the server's own words. The key
is read from the environment, goes into one header, and nowhere else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bough.engines.base import EngineError
from bough.errors import InputError
from bough.event_loop import PASSING, PassingError, RetryLimits, retried, retry_after_s
from bough.files import is_loopback

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response

log = logging.getLogger(__name__)

WORDS = 600  # of a server's explanation, in characters
# The largest answer that is read. One with 100,000 tokens and their log-probabilities has 10 MB.
MAX_BODY = 64 << 20


@dataclass(frozen=True, kw_only=True)
class ServerLimits(RetryLimits):
    """How many requests a server gets at a time, and how long it is waited for.

    `timeout_s` bounds one request from start to end.
    """

    concurrency: int = 64
    timeout_s: float = 600.0
    connect_timeout_s: float = 10.0


class RequestRefusedError(EngineError):
    """The server understood the request and says no; asking again would not help. `words` are the server's."""

    def __init__(self, message: str, status: int, words: str) -> None:
        super().__init__(message)
        self.status, self.words = status, words


class Server:
    """`url` is what the paths of requests are added to; `key_variable` names the environment variable with the key."""

    def __init__(self, url: str, *, key_variable: str = "OPENAI_API_KEY", limits: ServerLimits | None = None) -> None:
        self.url = _checked(url)
        self.key_variable = key_variable
        self.limits = limits or ServerLimits()
        self.retried = 0
        self.sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        self._key = _key(key_variable)
        self._client: AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        parts = urlsplit(self.url)
        self._loopback = is_loopback(parts.hostname or "")
        if self._key and parts.scheme == "http" and not self._loopback:
            log.warning(
                "The key in %s is sent unencrypted to %s: the address is not https.", key_variable, parts.netloc
            )

    async def get(self, path: str) -> Any:
        """The JSON at `path`, asked for once."""
        try:
            return await self._once("GET", path, None)
        except PassingError as error:
            raise EngineError(str(error)) from None

    async def post(self, path: str, body: dict[str, Any], *, json_answer: bool = True) -> Any:
        """The JSON, or else text, that the server answers. Raises `RequestRefusedError`, or `EngineError`."""

        def count_retry() -> None:
            self.retried += 1

        def once() -> Awaitable[Any]:
            return self._once("POST", path, body, json_answer)

        try:
            return await retried(once, self.limits, sleep=self.sleep, on_retry=count_retry)
        except PassingError as error:
            raise EngineError(str(error)) from None

    async def close(self) -> None:
        """Drops all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _once(self, method: str, path: str, body: dict[str, Any] | None, json_answer: bool = True) -> Any:
        import httpx2

        client = self._connected()
        where = f"{self.url}{path}"
        try:
            async with (
                self._places,
                asyncio.timeout(self.limits.timeout_s),
                client.stream(method, where, json=body) as response,
            ):
                content = await _content(response, where)
        except TimeoutError:
            raise PassingError(f"{where} did not answer within {self.limits.timeout_s:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            # Its context holds the request with its headers: not a thing to carry into a traceback.
            raise PassingError(
                f"{where} cannot be reached: {self._scrub(str(error) or type(error).__name__)}"
            ) from None
        return self._read(response, content, where, json_answer)

    def _read(self, response: Response, content: bytes, where: str, json_answer: bool) -> Any:
        if response.is_success and not json_answer:
            return content.decode(errors="replace")
        if response.is_success:
            try:
                return json.loads(content)
            except (ValueError, RecursionError):
                start = self._scrub(content[:WORDS].decode(errors="replace"))[:80]
                raise PassingError(f"{where} answered something that is not JSON: {start!r}") from None
        words = self._scrub(_words(response, content))[:WORDS]  # in this order: half a key is still a secret
        message = f"{where} answered {response.status_code}: {words}"
        if response.status_code in PASSING:
            raise PassingError(message, retry_after_s(response.headers.get("retry-after")))
        if response.status_code in (401, 403):
            have = f"the key in {self.key_variable}" if self._key else f"no key ({self.key_variable} is not set)"
            message = f"{message}\nIt was given {have}."
        raise RequestRefusedError(message, response.status_code, words)

    def _connected(self) -> AsyncClient:
        """The client of this event loop: connections cannot be used in another."""
        import httpx2

        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop = loop
            self._places = asyncio.Semaphore(self.limits.concurrency)
            self._client = httpx2.AsyncClient(
                headers={"Accept-Encoding": "identity"}  # what is packed may be far larger than it looks
                | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
                timeout=httpx2.Timeout(None, connect=self.limits.connect_timeout_s),
                limits=httpx2.Limits(max_keepalive_connections=self.limits.concurrency),
                trust_env=not self._loopback,  # no proxy reaches this machine's own servers
            )
        return self._client

    def _scrub(self, text: str) -> str:
        """`text` without the key (servers quote it back) and without control characters."""
        from bough.terminal.console import printable

        return printable(text.replace(self._key, "***") if self._key else text)


def _checked(url: str) -> str:
    """The address without a slash at its end; a bare host gets the usual /v1."""
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError as error:
        raise InputError(f"{url!r} is not a server address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"{url!r} is not a server address; write it like http://localhost:8000/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        # What is not shown: this may be where somebody wrote a key.
        raise InputError(
            f"the address of {parts.hostname} contains a user, a key or a query; "
            "keys are taken from the environment only, and the address is the part before any '?'"
        )
    path = parts.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/completions")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def _key(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise InputError(
            f"the environment variable {variable} contains no usable key: it has characters that no header can carry"
        )
    return key


async def _content(response: Response, where: str) -> bytes:
    """The whole body, at most MAX_BODY bytes."""
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise EngineError(f"{where} answered in the encoding {coding!r:.40}, which it was not asked for")
    content = bytearray()
    async for piece in response.aiter_raw():
        content += piece
        if len(content) > MAX_BODY:
            raise EngineError(f"{where} answered more than {MAX_BODY >> 20} MiB")
    return bytes(content)


def _words(response: Response, content: bytes) -> str:
    """What the server says about an error, wherever it puts that."""
    if response.is_redirect:
        return f"it moved to {response.headers.get('location')}; give that address"
    try:
        said = json.loads(content)
        if isinstance(said, dict):
            said = said.get("error") or said.get("message") or said.get("detail") or said
        if isinstance(said, dict) and said.get("message"):
            more = ", ".join(word for word in (said.get("code"), said.get("type")) if isinstance(word, str))
            said = f"{said['message']} ({more})" if more else said["message"]
        words = said if isinstance(said, str) else json.dumps(said)
    except (ValueError, RecursionError):
        words = content.decode(errors="replace")
    return words.strip() or "no explanation"
