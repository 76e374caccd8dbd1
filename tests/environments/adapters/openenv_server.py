"""A server that answers as a real OpenEnv 0.10.0 server did: its messages are those of the committed transcript.

An action that was not recorded makes it fail, each number in its own way.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

TRANSCRIPT = json.loads(Path(__file__).with_name("openenv_transcript.json").read_text())
DIES, GARBAGE, SILENT, STRANGE = 99, 98, 97, 96


class OpenEnvServer:
    """Replays one of the recorded environments. Beyond `capacity` sessions it refuses, in the recorded words."""

    def __init__(self, name: str, *, capacity: int = 100, schema: Any = None, answers: Any = None) -> None:
        recorded = TRANSCRIPT[name]
        self.schema = json.dumps(schema or recorded["schema"])
        self.answers = {_key(one["sent"]): json.dumps(one["received"]) for one in recorded["messages"]}
        self.answers |= {_key(sent): json.dumps(received) for sent, received in answers or []}
        self.capacity, self.sessions, self.most = capacity, 0, 0
        self.received: list[Any] = []

    async def respond(self, connection: ServerConnection, request: Request) -> Response | None:
        return connection.respond(200, self.schema) if request.path == "/schema" else None

    async def serve(self, socket: ServerConnection) -> None:
        if self.sessions >= self.capacity:
            await socket.send(json.dumps(TRANSCRIPT["full"]))
            return
        self.sessions += 1
        self.most = max(self.most, self.sessions)
        try:
            async for text in socket:
                message = json.loads(text)
                self.received.append(message)
                if message["type"] == "close":
                    return
                await self._answer(socket, message)
        finally:
            self.sessions -= 1

    async def _answer(self, socket: ServerConnection, message: Any) -> None:
        guess = message["data"].get("guess")
        if guess == DIES:
            socket.transport.abort()
        elif guess == GARBAGE:
            await socket.send("<html>502 Bad Gateway</html>")
        elif guess == STRANGE:
            await socket.send('{"type": "observation", "data": ["unexpected"]}')
        elif guess == SILENT:
            await socket.wait_closed()
        else:
            await socket.send(self.answers[_key(message)])


@contextmanager
def running(server: OpenEnvServer) -> Iterator[str]:
    """Runs the server in a thread; yields the name of its environment."""
    ready: Any = threading.Event()
    port, loop = 0, asyncio.new_event_loop()

    async def main() -> None:
        nonlocal port, stop
        stop = asyncio.Event()
        async with serve(server.serve, "127.0.0.1", 0, process_request=server.respond) as listening:
            port = next(iter(listening.sockets)).getsockname()[1]
            ready.set()
            await stop.wait()

    stop: Any = None
    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    ready.wait(30)
    try:
        yield f"openenv:http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


def _key(message: Any) -> str:
    """Any seed was recorded as the one seed."""
    if isinstance(message, dict) and message["type"] == "reset":
        return "reset"
    return json.dumps(message, sort_keys=True)
