"""MCP servers: `mcp:COMMAND` starts a server for each episode, `mcp:https://host/mcp` opens a session on a running one.

The server's tools are the agent's. The tasks and their checks come from `--task-file`
(`bough.environments.adapters.mcp_task`). A reply without a tool call is the final answer.
"""

from __future__ import annotations

import shutil
from typing import Any, ClassVar

from pydantic import Field

from bough.config.base import Config
from bough.environments.adapters.mcp_client import McpConnection, is_url, result_text, split_command
from bough.environments.adapters.mcp_task import McpTask
from bough.environments.adapters.remote_tools import RemoteToolEnvironment
from bough.environments.base import Environment, EnvironmentFailedError, Observation
from bough.environments.tool_failures import ToolError
from bough.errors import InputError
from bough.types import Task, ToolCall

FINISH = "When you are done, reply without a tool call."
LAST_LINE = " The last line of that reply is your answer."


class McpEnvironment(RemoteToolEnvironment):
    """The tools of an MCP server, with tasks from a file."""

    target: ClassVar[str] = ""
    max_turns: ClassVar[int] = 20

    class Settings(Config):
        """How the server is reached."""

        variables: list[str] = Field(
            [], description="environment variables that the command may see besides PATH, HOME and the like"
        )
        key_variable: str | None = Field(None, description="the environment variable that contains a URL's API key")

    class Options(Settings):
        """How the server is reached."""

    settings: ClassVar[Settings] = Settings()

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.asked = McpTask.of(task)
        self.connection: McpConnection | None = None
        self.calls: list[dict[str, Any]] = []

    async def start(self) -> Observation:
        self.connection = McpConnection(
            self.target, variables=self.settings.variables, key_variable=self.settings.key_variable
        )
        await self.connection.open()
        offered = {tool.name: tool for tool in await self.connection.tools()}
        names = list(offered) if self.asked.tools is None else self.asked.tools
        if unknown := [name for name in names if name not in offered]:
            raise InputError(f"task {self.task.id}: the server has no tool {unknown[0]!r}; it has {', '.join(offered)}")
        self.offer((name, offered[name].description or "", offered[name].input_schema) for name in names)
        finish = FINISH + (LAST_LINE if self.asked.check.answer is not None else "")
        rules = "\n\n".join(filter(None, [self.connection.instructions, finish]))
        return Observation.begin(rules, self.asked.instructions, tools=self.tools)

    async def _use(self, call: ToolCall) -> str:
        result = await self._opened.call(call.name, call.arguments)
        text = result_text(result)
        self.calls.append({"name": call.name, "arguments": call.arguments, "result": text, "error": result.is_error})
        if result.is_error:
            raise ToolError(text)
        return text

    async def answer(self, text: str) -> Observation:
        solved = await self.asked.solved(text, self.calls, self._opened)
        return Observation.end(success=solved, action=text)

    async def close(self) -> None:
        if self.connection is not None:
            await self.connection.close()
            self.connection = None

    @property
    def _opened(self) -> McpConnection:
        if self.connection is None:
            raise EnvironmentFailedError("the connection to the MCP server is closed")
        return self.connection


def adapt(target: str) -> type[Environment]:
    """The server that a command starts, or that runs at a URL."""
    if not is_url(target):
        command = split_command(target)[0]
        if shutil.which(command) is None:
            raise InputError(f"environment 'mcp:{target}': there is no command {command!r}")
    more = {"__module__": __name__, "__doc__": f"The tools of the MCP server {target}.", "target": target}
    return type("McpEnvironment", (McpEnvironment,), more)
