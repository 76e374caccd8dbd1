"""Records `openenv_transcript.json`: what real OpenEnv servers answer. Not run by the tests.

In an environment with `openenv==0.10.0` and `httpx`: python record_openenv.py
"""

import asyncio
import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import uvicorn
import websockets
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class GuessAction(Action):
    """A guess."""

    guess: int = Field(ge=1, le=100, description="the number you guess")


class GuessObservation(Observation):
    hint: str = ""
    remaining: int = 10


class Guess(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: Any = None, episode_id: Any = None, **_: Any) -> Any:
        self._secret = random.Random(seed).randint(1, 100)
        self._state = State(episode_id=episode_id, step_count=0)
        return GuessObservation(hint="I picked a number from 1 to 100.")

    def step(self, action: Any, timeout_s: Any = None, **_: Any) -> Any:
        self._state.step_count += 1
        if action.guess == 13:
            raise RuntimeError("thirteen breaks this server")
        right, steps = action.guess == self._secret, self._state.step_count
        hint = "Correct." if right else "Higher." if action.guess < self._secret else "Lower."
        return GuessObservation(hint=hint, remaining=10 - steps, done=right or steps >= 10, reward=float(right))

    @property
    def state(self) -> Any:
        return self._state


class Shop(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server, self.sold, self._state = FastMCP("shop"), list[Any](), State()

        @server.tool
        def price(item: str) -> float:
            """Price of one item in euros."""
            return {"apple": 0.5, "pear": 0.75}[item]

        @server.tool
        def buy(item: str, count: int = 1) -> str:
            """Buys items."""
            self.sold.append((item, count))
            return f"bought {count} {item}"

        super().__init__(server)

    def reset(self, seed: Any = None, episode_id: Any = None, **_: Any) -> Any:
        self.sold.clear()
        return Observation(metadata={"instructions": "Buy three apples."})

    def _step_impl(self, action: Any, timeout_s: Any = None, **_: Any) -> Any:
        return Observation(metadata={"error": "unknown action"})

    async def step_async(self, action: Any, timeout_s: Any = None, **more: Any) -> Any:
        seen = await super().step_async(action, timeout_s=timeout_s, **more)
        if ("apple", 3) in self.sold:
            seen.done, seen.reward = True, 1.0
        return seen

    @property
    def state(self) -> Any:
        return self._state


def step(**action: Any) -> Any:
    return {"type": "step", "data": action}


def call(name: str, **arguments: Any) -> Any:
    return step(type="call_tool", tool_name=name, arguments=arguments)


RESET = {"type": "reset", "data": {"seed": 7}}
LIST = {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}}
SCRIPTS: dict[str, list[Any]] = {
    "guess": [
        RESET, step(guess=50), step(guess="many"), step(guess=1000, x=1), step(guess=13), {"type": "state"},
        "{not json", {"type": "nonsense"}, step(guess=42), step(guess=41), step(guess=40),
    ],
    "shop": [
        RESET, LIST, step(type="list_tools"), call("price", item="apple"), call("price", item="plum"),
        call("price", wrong=1), call("steal"), call("buy", item="apple", count=3),
    ],
}  # fmt: skip


async def talk(url: str, script: list[Any]) -> list[Any]:
    said = []
    async with websockets.connect(url) as socket:
        for sent in script:
            await socket.send(sent if isinstance(sent, str) else json.dumps(sent))
            said.append({"sent": sent, "received": json.loads(await socket.recv())})
    return said


async def main() -> None:
    apps = {
        "guess": create_fastapi_app(Guess, GuessAction, GuessObservation, max_concurrent_envs=4),
        "shop": create_fastapi_app(Shop, CallToolAction, CallToolObservation, max_concurrent_envs=4),
    }
    recorded: dict[str, Any] = {"openenv": "0.10.0"}
    for port, (name, app) in enumerate(apps.items(), 8761):
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
        threading.Thread(target=server.run, daemon=True).start()
        while not server.started:
            time.sleep(0.1)
        http, socket = f"http://127.0.0.1:{port}", f"ws://127.0.0.1:{port}/ws"
        recorded[name] = {page: httpx.get(f"{http}/{page}").json() for page in ("schema", "metadata")}
        recorded[name]["messages"] = await talk(socket, SCRIPTS[name])
    held = [await websockets.connect("ws://127.0.0.1:8761/ws") for _ in range(4)]
    async with websockets.connect("ws://127.0.0.1:8761/ws") as refused:
        recorded["full"] = json.loads(await refused.recv())
    for one in held:
        await one.close()
    Path(__file__).with_name("openenv_transcript.json").write_text(json.dumps(recorded, indent=1))


if __name__ == "__main__":
    asyncio.run(main())
