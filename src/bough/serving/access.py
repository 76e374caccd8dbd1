"""Who may use the endpoint.

On a loopback address anyone on this machine may, but no web page: a request must name the host
that we listen on, and a browser's request from another site is refused. Any other address
needs a key, sent as `Authorization: Bearer KEY`.
"""

from __future__ import annotations

import hmac
import os
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from bough.errors import InputError
from bough.loopback import is_loopback
from bough.serving.answer import refused
from bough.serving.refusal import RefusedError

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
MIN_KEY = 16
# What a load balancer may ask without a key.
OPEN_PATHS = ("/health",)


@dataclass(frozen=True)
class Access:
    """`hosts` are the names that a request may address us by, None for any; `key` is the key it must have, if any."""

    hosts: frozenset[str] | None
    key: str | None = None

    def refusal(self, scope: Scope) -> RefusedError | None:
        headers = Headers(scope=scope)
        if self.hosts is not None and _without_port(headers.get("host", "")) not in self.hosts:
            return RefusedError(421, "this server does not answer to that host name", code="host")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") or self._from_another_page(headers):
            return RefusedError(403, "web pages of other sites may not use this server", code="cross_site")
        if self.key is None or scope["path"] in OPEN_PATHS:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.key.encode()):
            return None
        return RefusedError(401, "the key is missing or wrong; send it as Authorization: Bearer KEY", code="key")

    def _from_another_page(self, headers: Headers) -> bool:
        """Browsers without Sec-Fetch-Site still say where a page's POST comes from."""
        origin = headers.get("origin")
        return self.hosts is not None and origin is not None and origin.partition("://")[2] != headers.get("host")


def access(host: str, key_variable: str) -> Access:
    """The rules for an address. One that other machines can reach needs a key in the environment variable."""
    key = os.environ.get(key_variable, "").strip() or None
    if is_loopback(host):
        own = f"[{host}]" if ":" in host else host
        return Access(LOOPBACK_NAMES | {own}, key)
    if key is None:
        raise InputError(
            f"--host {host}: other machines could reach the server there; put a key of at least {MIN_KEY} characters "
            f"into the environment variable {key_variable}, or leave --host out"
        )
    if len(key) < MIN_KEY:
        raise InputError(f"the key in {key_variable} is shorter than {MIN_KEY} characters")
    return Access(None, key)


class Guard:
    """Checks every request before it reaches the application."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            return
        refusal = self.access.refusal(scope) if scope["type"] == "http" else None
        await (refused(refusal) if refusal else self.app)(scope, receive, send)


def _without_port(host: str) -> str:
    host = host.strip().lower()
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.partition(":")[0]
