"""Environments on an OpenEnv server: `openenv:http://host:8000`.

| the server's action | how the agent acts |
|---|---|
| is a call of an MCP tool | it calls the server's tools |
| has one field, a text | its whole reply is that text |
| has other fields | it calls the one tool `act` with those fields |
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import httpx2
from pydantic import Field, JsonValue
from pydantic_core import to_json
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from bough.chat.tool_calls import spoken
from bough.config.base import Config
from bough.environments.base import Environment, EnvironmentFailedError, Observation
from bough.environments.registry import RemoteToolEnvironment, seeded_tasks, subclass
from bough.environments.tools import MisuseError, ToolError
from bough.errors import InputError, exception_line
from bough.types import Task, ToolCall

ACT = "act"
# Errors of a tool that the agent's call caused; the others are the server's.
OF_THE_CALL = ("execution_error", "invalid_args", "tool_not_found")


class OpenEnvEnvironment(RemoteToolEnvironment):
    """An environment on an OpenEnv server."""

    url: ClassVar[str] = ""

    class Options(Config):
        """Which tasks to make."""

        reset: dict[str, JsonValue] = Field({}, description="arguments of a reset besides the seed")
        instructions: str = Field("", description="what the agent is told before the first observation")

    @classmethod
    def tasks(cls, options: Any, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        yield from seeded_tasks(split, seed, options.model_dump(exclude_defaults=True))

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        fields = self.Options.model_fields
        self.options = self.Options(**{name: task.data[name] for name in fields if name in task.data})
        self.connection = OpenEnvConnection(self.url)
        self.has_tools = False
        self.text_field: str | None = None
        self.reward: float | None = None

    async def start(self) -> Observation:
        schema = await self.connection.schema()
        fields = {name: one for name, one in schema.get("properties", {}).items() if name != "metadata"}
        self.has_tools = {"tool_name", "arguments"} <= fields.keys()
        reset = {"seed": self.task.seed, **self.options.reset}
        await self.connection.open()
        if self.has_tools:
            # Before the reset, which then starts the count of steps.
            listed = await self.connection.request("step", {"type": "list_tools"})
            self.offer(_tools(listed["observation"]))
        elif len(fields) == 1 and next(iter(fields.values())).get("type") == "string":
            [self.text_field] = fields
        else:
            required = [name for name in schema.get("required", ()) if name in fields]
            parameters = {**schema, "type": "object", "properties": fields, "required": required}
            self.offer([(ACT, str(schema.get("description") or "Takes an action."), parameters)])
        seen = await self.connection.request("reset", reset)
        if seen.get("done"):
            raise EnvironmentFailedError("the OpenEnv server ended the episode before the agent's first action")
        text = "\n\n".join(filter(None, [self.options.instructions, observation_text(seen)]))
        return Observation.say(text or "Begin.", tools=self.tools)

    async def step(self, reply: str) -> Observation:
        self.reward = None
        if self.text_field is None:
            return replace(await super().step(reply), reward=self.reward)
        text = spoken(reply).strip()
        try:
            seen = await self.connection.request("step", {self.text_field: text})
        except RefusedActionError as error:
            return Observation.say(f"The reply is invalid. {error}.", error="malformed")
        said = observation_text(seen)
        if self._take(seen):
            return Observation.end(said, success=_success(seen), reward=self.reward, action=text)
        return Observation.say(said or "Go on.", reward=self.reward, action=text)

    async def _use(self, call: ToolCall) -> str:
        action: dict[str, Any] = call.arguments
        if self.has_tools:
            action = {"type": "call_tool", "tool_name": call.name, "arguments": call.arguments}
        try:
            seen = await self.connection.request("step", action)
        except RefusedActionError as error:
            raise MisuseError(f"{call.name} was called with invalid arguments. {error}.") from None
        if self._take(seen):
            self.end(success=_success(seen))
        return tool_result(seen["observation"]) if self.has_tools else observation_text(seen)

    async def close(self) -> None:
        await self.connection.close()

    def _take(self, seen: dict[str, Any]) -> bool:
        """Adds the reward of a step to those of this turn; whether the episode is over."""
        reward = seen.get("reward")
        if isinstance(reward, int | float):
            self.reward = (self.reward or 0.0) + float(reward)
        return bool(seen.get("done"))


def adapt(url: str) -> type[Environment]:
    """The environment of the server at `url`."""
    if "://" in url and not url.startswith(("http://", "https://", "ws://", "wss://")):
        raise InputError(f"environment 'openenv:{url}': the address must begin with http://, https://, ws:// or wss://")
    return subclass(OpenEnvEnvironment, f"The environment on the OpenEnv server {url}.", url=url)


def observation_text(seen: dict[str, Any]) -> str:
    """An observation as the agent reads it: its only text, or its fields line by line."""
    fields = dict(seen["observation"])
    metadata = fields.pop("metadata", None)
    shown = fields or metadata or {}
    if len(shown) == 1 and isinstance(only := next(iter(shown.values())), str):
        return only
    return "\n".join(f"{name}: {_plain(value)}" for name, value in shown.items() if value is not None)


def tool_result(observation: dict[str, Any]) -> str:
    """What a tool returned. Raises ToolError for a failed call, EnvironmentFailedError for a failed server."""
    error, result = observation.get("error"), observation.get("result")
    if isinstance(error, dict):
        said = str(error.get("message"))
        if error.get("error_type") in OF_THE_CALL:
            raise ToolError(said)
        raise EnvironmentFailedError(f"the OpenEnv server failed at a tool: {error.get('error_type')}: {said:.300}")
    if not isinstance(result, dict) or not isinstance(content := result.get("content"), list):
        return _plain(result)
    blocks = [block for block in content if isinstance(block, dict)]
    text = "\n".join(str(block.get("text", f"[{block.get('type')}]")) for block in blocks)
    if result.get("is_error"):
        raise ToolError(text)
    return text


def _tools(observation: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    try:
        return [(tool["name"], tool.get("description") or "", tool["input_schema"]) for tool in observation["tools"]]
    except (LookupError, TypeError) as error:
        raise EnvironmentFailedError(f"the OpenEnv server's tools cannot be read: {observation!r:.200}") from error


def _success(seen: dict[str, Any]) -> bool | None:
    """OpenEnv has no word for success: a server says it in its metadata, or rewards the last step."""
    for metadata in (seen.get("metadata"), seen["observation"].get("metadata")):
        if isinstance(metadata, dict) and isinstance(metadata.get("success"), bool):
            return bool(metadata["success"])
    reward = seen.get("reward")
    return float(reward) > 0 if isinstance(reward, int | float) else None


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value, fallback=str).decode()


MAX_BYTES = 100 * 2**20
MAX_SCHEMA = 4 * 2**20
CONNECT_S = 10.0
# What reading an answer raises that is not of the agreed form.
MALFORMED = (ValueError, LookupError, TypeError, RecursionError)


class RefusedActionError(Exception):
    """The action does not fit the schema: the agent's mistake. The message says what is wrong."""


class OpenEnvConnection:
    """A session on a server: JSON over a WebSocket. Any failure of the server is an EnvironmentFailedError.

        {"type": "reset", "data": {"seed": 7}} or {"type": "step", "data": {…the action…}}
        → {"type": "observation", "data": {"observation": {…}, "reward": 0.0, "done": false}}
        → {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": …}}

    `GET /schema` describes the action.
    """

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
        fields = action.get("properties", {}) if isinstance(action, dict) else None
        described = isinstance(fields, dict) and all(isinstance(field, dict) for field in fields.values())
        if not described or not isinstance(action.get("required", []), list):
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

    async def open(self) -> None:
        try:
            self._socket = await connect(self.ws_url, max_size=MAX_BYTES, open_timeout=CONNECT_S)
        except (WebSocketException, OSError) as error:
            raise self._failure("cannot be reached", error) from error

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
                reward, done = content.get("reward"), content.get("done")
                if reward is not None and not (isinstance(reward, int | float) and abs(reward) <= sys.float_info.max):
                    raise ValueError("the reward is not a finite number")
                if not isinstance(done, bool | None):
                    raise ValueError("done is neither true nor false")
                return dict(content)
            code, message = content["code"], str(content["message"])
        except MALFORMED as error:
            raise self._failure(f"answered {kind} with {text!r:.200}", None) from error
        if code == "CAPACITY_REACHED":
            raise self._failure(f"is full; give it more sessions, or lower --concurrency ({message:.300})", None)
        if code == "VALIDATION_ERROR" and kind == "step":
            with suppress(LookupError, TypeError):  # the problems as the server's validation lists them
                listed = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in content["errors"][:10]]
                message = "; ".join(listed) or message
            raise RefusedActionError(message)
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


def urls(url: str) -> tuple[str, str]:
    """The addresses of a server for HTTP and for its WebSocket."""
    scheme, separator, rest = url.rstrip("/").partition("://")
    if not separator:
        scheme, rest = "http", scheme
    secure = scheme in ("https", "wss")
    return f"http{'s' * secure}://{rest}", f"ws{'s' * secure}://{rest}/ws"
