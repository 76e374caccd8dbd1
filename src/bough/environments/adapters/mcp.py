"""MCP servers: `mcp:COMMAND` starts a server for each episode, `mcp:https://host/mcp` opens a session on a running one.

The server's tools are the agent's. The tasks and their checks come from `--task-file`
(`bough.environments.adapters.mcp`). A reply without a tool call is the final answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from decimal import Decimal
from typing import IO, Any, ClassVar

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent, Tool
from pydantic import Field, JsonValue, field_validator, model_validator

from bough.config.base import Config
from bough.environments.base import Environment, EnvironmentFailedError, Observation
from bough.environments.registry import RemoteToolEnvironment, subclass
from bough.environments.tools import ToolError
from bough.errors import InputError, exception_line
from bough.types import Task, ToolCall

log = logging.getLogger(__name__)

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
        self.connection = McpConnection(
            self.target, variables=self.settings.variables, key_variable=self.settings.key_variable
        )

    async def start(self) -> Observation:
        await self.connection.open()
        offered = {tool.name: tool for tool in await self.connection.tools()}
        names = list(offered) if self.asked.tools is None else self.asked.tools
        states = self.asked.check.state
        if unknown := [name for name in (*names, *(state.tool for state in states)) if name not in offered]:
            raise InputError(f"task {self.task.id}: the server has no tool {unknown[0]!r}; it has {', '.join(offered)}")
        for state in states:
            required = offered[state.tool].input_schema.get("required") or []
            if missing := [name for name in required if name not in state.arguments]:
                raise InputError(f"task {self.task.id}: its check calls {state.tool} without {missing[0]}")
        self.offer((name, offered[name].description or "", offered[name].input_schema) for name in names)
        finish = FINISH + (LAST_LINE if self.asked.check.answer is not None else "")
        rules = "\n\n".join(filter(None, [self.connection.instructions, finish]))
        return Observation.begin(rules, self.asked.instructions, tools=self.tools)

    async def _use(self, call: ToolCall) -> str:
        result = await self.connection.call(call.name, call.arguments)
        said = [block.text if isinstance(block, TextContent) else f"[{block.type}]" for block in result.content]
        text = "\n".join(said) or ("" if result.structured_content is None else str(result.structured_content))
        if result.is_error:
            raise ToolError(text)
        return text

    async def answer(self, text: str) -> Observation:
        solved = await self.asked.solved(text, self.connection)
        return Observation.end(success=solved, action=text)

    async def close(self) -> None:
        await self.connection.close()


def adapt(target: str) -> type[Environment]:
    """The server that a command starts, or that runs at a URL."""
    if not is_url(target):
        command = split_command(target)[0]
        if shutil.which(command) is None:
            raise InputError(f"environment 'mcp:{target}': there is no command {command!r}")
    return subclass(McpEnvironment, f"The tools of the MCP server {target}.", target=target)


# A connection to an MCP server: a command that is started for it, or the URL of a running server.

# What a server does wrong is in our error; the client would also print its own traceback of it.
logging.getLogger("mcp").setLevel(logging.CRITICAL)
# How much of what a server wrote to its standard error is shown when it fails.
MAX_LOG = 500
# A server can list them endlessly.
MAX_TOOLS = 10_000
# Time that a server has to end; then it is killed.
CLOSE_S = 8.0


class McpConnection:
    """One session. Any failure of the server is an EnvironmentFailedError.

    The client must be left by the task that entered it, so a task of its own holds it open.
    """

    def __init__(self, target: str, *, variables: Sequence[str] = (), key_variable: str | None = None) -> None:
        self.target, self.variables, self.key_variable = target, variables, key_variable
        self.instructions = ""
        self._client: Client | None = None
        self._holder: asyncio.Task[None] | None = None
        self._ready: asyncio.Event = asyncio.Event()
        self._done: asyncio.Event = asyncio.Event()
        self._log: IO[str] | None = None

    async def open(self) -> None:
        self._holder = asyncio.create_task(self._hold())
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait([self._holder, ready], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self._holder.done():
            raise self._failure("cannot be reached", self._holder.exception())

    async def tools(self) -> list[Tool]:
        found: list[Tool] = []
        cursor: str | None = None
        try:
            for _ in range(MAX_TOOLS):
                page = await self._open_client.list_tools(cursor=cursor)
                found += page.tools
                cursor = page.next_cursor
                if len(found) > MAX_TOOLS:
                    break
                if cursor is None:
                    return found
            raise ValueError(f"it has more than {MAX_TOOLS:,}")
        except Exception as error:
            raise self._failure("does not list its tools", error) from error

    async def call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        try:
            return await self._open_client.call_tool(name, arguments)
        except Exception as error:
            raise self._failure(f"failed at {name}", error) from error

    async def close(self) -> None:
        self._done.set()
        if self._holder is not None:
            if not self._ready.is_set():
                self._holder.cancel()
            await asyncio.wait([self._holder], timeout=CLOSE_S)
            self._holder.cancel()
            self._holder.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._holder = None
        if self._log is not None:
            self._log.close()
            self._log = None

    @property
    def _open_client(self) -> Client:
        if self._client is None or self._holder is None or self._holder.done():
            raise EnvironmentFailedError("the connection to the MCP server is closed")
        return self._client

    async def _hold(self) -> None:
        async with AsyncExitStack() as stack:
            if is_url(self.target):
                key = os.environ.get(self.key_variable) if self.key_variable else None
                headers = {"Authorization": f"Bearer {key}"} if key else {}
                # A server may hold its answer back for as long as a step may take.
                # A packed answer has no size that could be limited before it is unpacked.
                headers["Accept-Encoding"] = "identity"
                timeout, hooks = httpx2.Timeout(30.0, read=None), {"response": [_limit]}
                http = httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks=hooks)
                await stack.enter_async_context(http)
                client = Client(streamable_http_client(self.target, http_client=http))
            else:
                command, *arguments = split_command(self.target)
                variables = {name: os.environ[name] for name in self.variables if name in os.environ}
                self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  read after a failure
                server = StdioServerParameters(command=command, args=arguments, env=variables)
                client = Client(stdio_client(server, errlog=self._log))
            self._client = await stack.enter_async_context(client)
            # The client would match results with the patterns of the server's schema, some of which never end.
            client.session.validate_tool_result = lambda *_: asyncio.sleep(0)  # type: ignore[method-assign]
            self.instructions = client.instructions or ""
            self._ready.set()
            await self._done.wait()

    def _failure(self, what: str, error: BaseException | None) -> EnvironmentFailedError:
        if isinstance(error, EnvironmentFailedError):
            return error
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        why = str(error) if isinstance(error, MCPError) else "it ended" if error is None else exception_line(error, 500)
        written = ""
        if self._log is not None:
            file = self._log.fileno()
            end = os.pread(file, 4 * MAX_LOG, max(0, os.fstat(file).st_size - 4 * MAX_LOG))
            written = end.decode(errors="replace")[-MAX_LOG:].strip()
        return EnvironmentFailedError(f"the MCP server {what}: {why}" + (f"\n{written}" if written else ""))


def is_url(target: str) -> bool:
    return target.startswith(("http://", "https://"))


def split_command(target: str) -> list[str]:
    """The words of a command; `python` is the one that runs this. Raises InputError where a quote is not closed."""
    try:
        command, *arguments = shlex.split(target)
    except ValueError as error:
        raise InputError(f"environment 'mcp:{target}': the command cannot be read: {error}") from None
    return [sys.executable if command == "python" else command, *arguments]


class StateCheck(Config):
    """What a tool must return at the end."""

    tool: str
    arguments: dict[str, JsonValue] = Field({}, description="its arguments")
    equals: JsonValue


class TaskCheck(Config):
    """What must hold at the end."""

    answer: JsonValue = Field(None, description="the last line of the final reply, or a list of accepted ones")
    state: list[StateCheck] = Field([], description="what tools must return")
    judge: str | None = Field(None, description="a rubric for the reward `judge`")

    @field_validator("state", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _something(self) -> TaskCheck:
        if self.answer is None and not self.state and self.judge is None:
            raise ValueError("needs an answer, a state or a judge")
        return self


class McpTask(Config):
    """One task, as a row of a task file: what to do, and how it is checked.

        {"instructions": "What do three apples cost?", "check": {"answer": 1.5}}
        {"instructions": "Sell all.", "check": {"state": {"tool": "stock", "arguments": {"item": "a"}, "equals": 0}}}
        {"instructions": "Write to the customer.", "check": {"judge": "Polite, and mentions the refund."}}

    Several checks must all hold. `judge` is left to the reward of that name, and success stays unknown. `tools`
    limits the tools that are offered.
    """

    instructions: str
    check: TaskCheck
    tools: list[str] | None = None

    @classmethod
    def of(cls, task: Task) -> McpTask:
        try:
            return cls(**{name: value for name, value in task.data.items() if name != "id"})
        except InputError as error:
            problems = error.problems or [str(error)]
            raise InputError(f"task {task.id} is not a task for an MCP server:", problems) from None

    async def solved(self, answer: str, connection: McpConnection) -> bool | None:
        """Whether all checks hold; None where only a judge can tell."""
        expected = self.check.answer
        accepted = expected if isinstance(expected, list) else [expected]
        if expected is not None and not any(same_answer(answer, one) for one in accepted):
            return False
        for state in self.check.state:
            result = await connection.call(state.tool, dict(state.arguments))
            if result.is_error:  # no lost episode: the agent may have broken what the check reads
                log.warning("the check by %s is an error, which counts as failed: %.200r", state.tool, _value(result))
            if result.is_error or _value(result) != state.equals:
                return False
        return None if self.check.judge is not None else True


_AROUND = " \t\r\n\"'`*_“”‘’«»()$€£¥:"
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?", re.ASCII)


def same_answer(reply: str, expected: JsonValue) -> bool:
    """Whether a reply ends with the lines of the expected answer: the same number, or the same words in any case.

    An expected text that starts with a zero, such as "007", is a code and no number.
    """
    wanted = _bare(expected) if isinstance(expected, str) else json.dumps(expected)
    lines, right = ([line for line in text.splitlines() if line.strip()] for text in (reply, wanted))
    said = _bare("\n".join(lines[-len(right) or -1 :]))
    one, other = (_THOUSANDS.sub("", text) for text in (said, wanted))
    code = isinstance(expected, str) and re.match(r"0\d", wanted)
    if not code and _NUMBER.fullmatch(one) and _NUMBER.fullmatch(other):
        exact = Decimal(one) == Decimal(other)
        return exact or (isinstance(expected, float) and float(one) == expected)
    return bool(said) and " ".join(said.split()).casefold() == " ".join(wanted.split()).casefold()


def _bare(text: str) -> str:
    """A text without the quotes, emphasis, currency and full stop around it. Linear in its length."""
    return text.replace("−", "-").strip(_AROUND).removesuffix(".").strip(_AROUND)


def _value(result: CallToolResult) -> Any:
    """What a tool returned: its structured content, else its text, read as JSON where it is."""
    content = result.structured_content
    if isinstance(content, dict) and content.keys() == {"result"}:
        return content["result"]  # servers wrap a plain value in an object
    if content is not None:
        return content
    text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
    try:
        return json.loads(text)
    except ValueError:
        return text


# HTTP with servers that are not trusted: an answer is read up to a limit, and never unpacked.

MAX_BYTES = 100 * 2**20


async def _limit(response: httpx2.Response) -> None:
    packed = response.headers.get("content-encoding", "identity")
    if packed != "identity":
        raise httpx2.DecodingError(f"the answer is packed ({packed:.20}), though that was not asked for")
    response.stream = _Limited(response.stream)


class _Limited(httpx2.AsyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > MAX_BYTES:
                raise httpx2.StreamError(f"the answer is larger than {MAX_BYTES >> 20} MiB")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
