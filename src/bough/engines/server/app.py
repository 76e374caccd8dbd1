"""The endpoint's addresses.

POST /v1/chat/completions             one request; the header X-Session-ID names its session
POST /s/NAME/v1/chat/completions      a request of the session NAME
POST /s/NAME/end                      closes the session: {"success": true, "reward": 0.7, "task": "…"}
GET  /v1/models, /s/NAME/v1/models    the model that is served
GET  /health
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import resource
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bough.engines.server.chat import (
    Completion,
    RefusedError,
    read_object,
    read_request,
    refusal_of,
)
from bough.engines.server.store import Recorder, read_outcome
from bough.errors import BoughError, InputError
from bough.files import is_loopback

SESSION = "x-session-id"
CHAT = "/v1/chat/completions"
# nginx's word for a client that closed its connection; it is never sent.
GONE = 499
# The texts of token ids, where the tokenizer is at hand.
TokenTexts = Callable[[list[int]], list[str]]
Read = TypeVar("Read")


def make_app(recorder: Recorder, access: Access, *, model: str, token_texts: TokenTexts | None = None) -> Guard:
    """The application. `model` is the name in its answers; the name in a request is not compared with it."""
    api = Api(recorder, model, token_texts)
    routes = [Route("/health", _guarded(api.health)), Route("/s/{session}/end", _guarded(api.end), methods=["POST"])]
    for prefix in ("", "/s/{session}"):
        routes += [
            Route(f"{prefix}{CHAT}", _guarded(api.complete), methods=["POST"]),
            Route(f"{prefix}/v1/models", _guarded(api.models)),
            Route(f"{prefix}/v1/models/{{model:path}}", _guarded(api.models)),
        ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        recorder.start()
        yield
        await recorder.close()

    async def not_here(request: Request, error: Exception) -> Response:
        words = f"{request.method} {request.url.path:.200} is not possible here; chat completions are at {CHAT}"
        return refused(RefusedError(getattr(error, "status_code", 404), words, code="unknown_address"))

    errors = dict.fromkeys((404, 405), not_here)
    return Guard(Starlette(routes=routes, lifespan=lifespan, exception_handlers=errors), access)


@dataclass(frozen=True)
class Api:
    """What each address answers."""

    recorder: Recorder
    model: str
    token_texts: TokenTexts | None = None

    async def complete(self, request: Request) -> Response:
        session = request.path_params.get("session") or request.headers.get(SESSION)
        try:
            asked = await parsed(read_request, await read_body(request))
        except RefusedError as refusal:
            self.recorder.refuse(session, refusal)
            raise
        answer, shown = await finished(request, self.recorder.answer(session, asked))
        texts = None
        if asked.logprobs and self.token_texts and answer.call:
            texts = self.token_texts(answer.call.completion_ids)
        id = f"chatcmpl-{secrets.token_hex(12)}"
        completion = Completion(id, self.model, asked, answer, shown, texts)
        if not asked.stream:
            return json_answer(completion.to_json())
        headers = {"cache-control": "no-cache"}
        return Response(b"".join(completion.events()), headers=headers, media_type="text/event-stream")

    async def end(self, request: Request) -> Response:
        outcome = await parsed(lambda body: read_outcome(read_object(body.strip() or b"{}")), await read_body(request))
        trajectory = await self.recorder.end(request.path_params["session"], outcome)
        return json_answer(
            {
                "id": trajectory.id,
                "task": trajectory.task.id,
                "turns": len(trajectory.turns),
                "success": trajectory.success,
                "reward": trajectory.rewards.get("outcome"),
                "rewritten_prompts": trajectory.info.get("rewritten_prompts", 0),
            }
        )

    async def models(self, request: Request) -> Response:
        name = request.path_params.get("model")
        if name not in (None, self.model):
            words = f"there is no model {name:.100}; this server has {self.model}"
            raise RefusedError(404, words, code="model_not_found")
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": "bough"}
        return json_answer({"object": "list", "data": [model]} if name is None else model)

    async def health(self, _: Request) -> Response:
        recorder = self.recorder
        return json_answer({"status": "ok", "open_sessions": recorder.open_sessions, "in_flight": recorder.in_flight})


def _guarded(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """The handler with every error as an answer."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientGoneError:
            return Response(status_code=GONE)
        except Exception as error:
            return refused(refusal_of(error))

    return answer


# Who may use the endpoint.
# On a loopback address anyone on this machine may, but no web page: a request must name the host that we listen on,
# and a browser's request from another site is refused. Any other address needs a key, sent as `Authorization: Bearer
# KEY`.

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
        # Browsers without Sec-Fetch-Site still say where a page's POST comes from.
        origin = headers.get("origin")
        foreign = self.hosts is not None and origin is not None and origin.partition("://")[2] != headers.get("host")
        if foreign or headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return RefusedError(403, "web pages of other sites may not use this server", code="cross_site")
        if self.key is None or scope["path"] in OPEN_PATHS:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.key.encode()):
            return None
        return RefusedError(401, "the key is missing or wrong; send it as Authorization: Bearer KEY", code="key")


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


# HTTP answers, and reading a request's body within limits.

# More text than the context of any model; every byte costs the other clients time.
MAX_BODY = 8 << 20
# A larger body is read in a thread.
MAX_ON_LOOP = 1 << 16
BODY_TIMEOUT_S = 60.0


class ClientGoneError(Exception):
    """The client has closed its connection."""


def json_answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(value, inf_nan_mode="null"), status, headers, media_type="application/json")


def refused(refusal: RefusedError) -> Response:
    """An error body as OpenAI's clients read it."""
    headers = {"retry-after": "1"} if refusal.status == 429 else None
    return json_answer(refusal.to_json(), refusal.status, headers)


async def read_body(request: Request) -> bytes:
    """The whole body. One that is too large or too slow is refused."""
    too_large = RefusedError(413, f"the body is larger than {MAX_BODY >> 20} MiB", code="too_large")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MAX_BODY:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY:
                    raise too_large
    except TimeoutError:
        raise RefusedError(408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s", code="timeout") from None
    except ClientDisconnect:
        raise ClientGoneError from None
    return bytes(body)


async def parsed(read: Callable[[bytes], Read], body: bytes) -> Read:
    """What `read` makes of a body."""
    return await asyncio.to_thread(read, body) if len(body) > MAX_ON_LOOP else read(body)


async def finished(request: Request, answer: Coroutine[Any, Any, Read]) -> Read:
    """The answer; cancelled with a ClientGoneError if the client hangs up. The body must have been read."""

    async def hung_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    work, gone = asyncio.ensure_future(answer), asyncio.ensure_future(hung_up())
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientGoneError
        return work.result()
    finally:
        gone.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait([work])


# The endpoint over HTTP: a listening socket and its server, on the caller's event loop.

# Connections that wait to be accepted.
BACKLOG = 2048
# Each connection takes a file descriptor.
OPEN_FILES = 65_536


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise InputError(
            f"port {port} of {host} cannot be used: {error.strerror}; choose another with --port"
        ) from None
    return listening


class Endpoint:
    """Serves an application on the event loop that calls `start`, until `close`."""

    def __init__(self, app: Any, listening: socket.socket, *, host: str = "127.0.0.1") -> None:
        import uvicorn

        class Server(uvicorn.Server):
            """Signals stay the caller's: it may have a loop of its own, in any thread."""

            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield

        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{listening.getsockname()[1]}"
        self._listening = listening
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, lifespan="on", server_header=False,
            backlog=BACKLOG, timeout_graceful_shutdown=1, timeout_keep_alive=75,
        )  # fmt: skip
        self._server = Server(config)
        self._serving: asyncio.Task[None] | None = None

    def base_url(self, session: str | None = None) -> str:
        """What an OpenAI client takes as its base URL."""
        return f"{self.address}/v1" if session is None else f"{self.address}/s/{session}/v1"

    async def start(self) -> None:
        """Answers from now on, on as many connections as the system lets this process have."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        while not self._server.started:
            if self._serving.done():
                raise BoughError("the endpoint could not be started")
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        """Stops answering; requests in flight get a second to end."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving
        self._listening.close()
