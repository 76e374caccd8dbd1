"""The endpoint over HTTP: a listening socket and its server, on the caller's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Iterator
from typing import Any

from bough.errors import BoughError, InputError

# Connections that wait to be accepted.
BACKLOG = 2048
# Each connection takes a file descriptor.
OPEN_FILES = 65_536


def need_server() -> None:
    """Raises InputError where the packages of the server are not installed."""
    try:
        import starlette
        import uvicorn
    except ImportError as error:
        raise InputError(
            f"the endpoint needs the package {error.name}: pip install 'bough[viewer]' installs it"
        ) from None
    assert starlette and uvicorn


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
        need_server()
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
        """Answers from now on."""
        allow_many_connections()
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        while not self._server.started:
            if self._serving.done():
                raise BoughError("the endpoint could not be started")
            await asyncio.sleep(0.005)

    async def wait(self) -> None:
        """Until the endpoint is closed."""
        assert self._serving is not None
        await self._serving

    async def close(self) -> None:
        """Stops answering; requests in flight get a second to end."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving
        self._listening.close()


def allow_many_connections() -> None:
    """Raises this process's own limit on open files as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
