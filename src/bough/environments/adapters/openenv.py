"""Environments on an OpenEnv server: `openenv:http://host:8000`.

| the server's action | how the agent acts |
|---|---|
| is a call of an MCP tool | it calls the server's tools |
| has one field, a text | its whole reply is that text |
| has other fields | it calls the one tool `act` with those fields |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field, JsonValue
from pydantic_core import to_json

from bough.config.base import Config
from bough.environments.adapters.openenv_client import OpenEnvConnection, RefusedActionError
from bough.environments.adapters.remote_tools import RemoteToolEnvironment
from bough.environments.adapters.seeds import seeded_tasks
from bough.environments.base import Environment, EnvironmentFailedError, Observation
from bough.environments.tool_calls import SHARE, MisuseError
from bough.environments.tool_failures import ToolError
from bough.errors import InputError
from bough.speech.functions import spoken
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
        patience_s = SHARE * self.step_timeout_s
        if self.has_tools:
            # Before the reset, which then starts the count of steps.
            listed = await self.connection.first("step", {"type": "list_tools"}, patience_s=patience_s)
            self.offer(_tools(listed["observation"]))
            seen = await self.connection.request("reset", reset)
        else:
            self._offer_action(schema, fields)
            seen = await self.connection.first("reset", reset, patience_s=patience_s)
        if seen.get("done"):
            raise EnvironmentFailedError("the OpenEnv server ended the episode before the agent's first action")
        text = "\n\n".join(filter(None, [self.options.instructions, observation_text(seen)]))
        return Observation.say(text or "Begin.", tools=self.tools)

    async def step(self, reply: str) -> Observation:
        self.reward = None
        if self.text_field is not None:
            return await self._send_text(spoken(reply).strip())
        return replace(await super().step(reply), reward=self.reward)

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

    def _offer_action(self, schema: dict[str, Any], fields: dict[str, Any]) -> None:
        if len(fields) == 1 and next(iter(fields.values())).get("type") == "string":
            [self.text_field] = fields
            return
        required = [name for name in schema.get("required", ()) if name in fields]
        parameters = {**schema, "type": "object", "properties": fields, "required": required}
        self.offer([(ACT, str(schema.get("description") or "Takes an action."), parameters)])

    async def _send_text(self, text: str) -> Observation:
        try:
            seen = await self.connection.request("step", {str(self.text_field): text})
        except RefusedActionError as error:
            return Observation.say(f"The reply is invalid. {error}.", error="malformed")
        done = self._take(seen)
        said = observation_text(seen) or ("" if done else "Go on.")
        if done:
            return Observation.end(said, success=_success(seen), reward=self.reward, action=text)
        return Observation.say(said, reward=self.reward, action=text)

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
    more = {"__module__": __name__, "__doc__": f"The environment on the OpenEnv server {url}.", "url": url}
    return type("OpenEnvEnvironment", (OpenEnvEnvironment,), more)


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
