"""Who may see the page, and what the page may do.

What is shown was written by models, and a browser can be led to a page of ours by anyone
else's: the answers carry a strict content-security policy, requests must name the host
that we listen on (a name that was made to point here is refused), and whoever comes over
a network needs the token.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bough.errors import InputError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
COOKIE = "bough_view"
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class Door:
    """The names under which we may be asked, and the token that is wanted, if any."""

    hosts: frozenset[str]
    any_address: bool = False
    token: str | None = None

    def knows(self, host: str) -> bool:
        """Whether the Host header names us. Addresses cannot be made to point elsewhere, names can."""
        name = _without_port(host)
        if name in self.hosts:
            return True
        return self.any_address and _address(name) is not None

    def accepts(self, given: str | None) -> bool:
        return self.token is None or (given is not None and hmac.compare_digest(given.encode(), self.token.encode()))


def door(host: str, *, remote: bool, token: str | None) -> Door:
    """The door for an address to listen on. One that others can reach needs --allow-remote, and has a token."""
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        own = {f"[{host}]" if ":" in host else host}
        return Door(frozenset({*LOOPBACK_NAMES, *own}), token=token)
    if not remote:
        raise InputError(
            f"--host {host}: others could reach the page there; say --allow-remote if that is meant "
            "(a token is then asked for), or leave --host out"
        )
    if token is not None and len(token) < 16:
        raise InputError("--token is shorter than 16 characters; leave it out and one is made")
    names: Iterable[str] = {host, socket.gethostname()} if address is not None else {host}
    own_names = frozenset(name.lower() for name in (*names, *LOOPBACK_NAMES))
    return Door(own_names, any_address=address is not None, token=token or secrets.token_urlsafe(24))


class Guard:
    """Checks every request before it reaches the pages."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self.app, self.door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self.app)(scope, receive, dressed)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if len(headers.getlist("host")) != 1 or not self.door.knows(headers["host"]):
            return PlainTextResponse("This page does not answer to that host name.", 421)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("There is nothing here to change.", 405, {"allow": "GET, HEAD"})
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and scope["path"] != "/":
            return PlainTextResponse("Other pages have no business here.", 403)
        if self.door.token is None or self.door.accepts(_cookie(headers)) or self.door.accepts(_bearer(headers)):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        given = dict(query).get("token")
        if not self.door.accepts(given):
            return PlainTextResponse("The address needs the token that `bough view` printed: …/?token=TOKEN", 401)
        # Out of the address bar, and into a cookie that no script can read.
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        answer = RedirectResponse("/" + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(COOKIE, self.door.token, httponly=True, samesite="strict", path="/")
        return answer


def _bearer(headers: Headers) -> str | None:
    """The token of a program, such as Prometheus. A browser sends no such header for another site's page."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else None


def _cookie(headers: Headers) -> str | None:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return morsel.value if morsel is not None else None


def _without_port(host: str) -> str:
    host = host.strip().lower()
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
