"""MCP servers: `mcp:COMMAND` starts a server for each episode, `mcp:https://host/mcp` opens a session on a running one.

The server's tools are the agent's. The tasks and their checks come from `--task-file`
(`bough.environments.adapters.mcp`). A reply without a tool call is the final answer.
"""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import IO, Any, ClassVar

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent, Tool
from pydantic import Field, JsonValue, field_validator, model_validator

from bough.config.base import Config
from bough.environments.adapters.names import RemoteToolEnvironment, subclass
from bough.environments.base import Environment, EnvironmentFailedError, Observation
from bough.environments.tools import ToolError
from bough.errors import InputError, exception_line
from bough.sandbox.base import SandboxError, SandboxLimits
from bough.sandbox.pool import Sandbox
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
        pages = 0
        while True:
            try:
                page = await self._open_client.list_tools(cursor=cursor)
            except Exception as error:
                raise self._failure("does not list its tools", error) from error
            found += page.tools
            cursor = page.next_cursor
            pages += 1
            if len(found) > MAX_TOOLS or pages > MAX_TOOLS:
                raise self._failure("does not list its tools", ValueError(f"it has more than {MAX_TOOLS:,}"))
            if cursor is None:
                return found

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
                http = limited_client(headers=headers, timeout=httpx2.Timeout(30.0, read=None))
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
            client.session.validate_tool_result = _accept  # type: ignore[method-assign]
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


async def _accept(name: str, result: CallToolResult) -> None:
    """A result need not fit the schema that its server declares: the agent reads it as it is."""


def is_url(target: str) -> bool:
    return target.startswith(("http://", "https://"))


def split_command(target: str) -> list[str]:
    """The words of a command; `python` is the one that runs this. Raises InputError where a quote is not closed."""
    try:
        command, *arguments = shlex.split(target)
    except ValueError as error:
        raise InputError(f"environment 'mcp:{target}': the command cannot be read: {error}") from None
    return [sys.executable if command == "python" else command, *arguments]


def result_text(result: CallToolResult) -> str:
    """A result as the agent reads it."""
    said = [block.text if isinstance(block, TextContent) else f"[{block.type}]" for block in result.content]
    return "\n".join(said) or ("" if result.structured_content is None else str(result.structured_content))


# Only the user can allow running without isolation; a task cannot.
CONSENT = "BOUGH_UNSAFE_NO_SANDBOX"
LIMITS = SandboxLimits(timeout_s=10.0, memory_mb=512)


class StateCheck(Config):
    """What a tool must return at the end."""

    tool: str
    arguments: dict[str, JsonValue] = Field({}, description="its arguments")
    equals: JsonValue


class TaskCheck(Config):
    """What must hold at the end."""

    answer: JsonValue = Field(None, description="the last line of the final reply, or a list of accepted ones")
    state: list[StateCheck] = Field([], description="what tools must return")
    python: str | None = Field(None, description="a function check(answer, calls), run in the sandbox")
    judge: str | None = Field(None, description="a rubric for the reward `judge`")

    @field_validator("state", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value

    @field_validator("python")
    @classmethod
    def _defines_check(cls, code: str | None) -> str | None:
        if code is not None:
            try:
                names = [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
            except SyntaxError as error:
                raise ValueError(f"is not Python: {error}") from None
            if "check" not in names:
                raise ValueError("must define a function check(answer, calls)")
        return code

    @model_validator(mode="after")
    def _something(self) -> TaskCheck:
        if self.answer is None and not self.state and self.python is None and self.judge is None:
            raise ValueError("needs an answer, a state, python or a judge")
        return self


class McpTask(Config):
    """One task, as a row of a task file: what to do, and how it is checked.

        {"instructions": "What do three apples cost?", "check": {"answer": 1.5}}
        {"instructions": "Sell all.", "check": {"state": {"tool": "stock", "arguments": {"item": "a"}, "equals": 0}}}
        {"instructions": "Use one call.", "check": {"python": "def check(answer, calls): return len(calls) == 1"}}
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

    async def solved(self, answer: str, calls: Sequence[dict[str, Any]], connection: McpConnection) -> bool | None:
        """Whether all checks hold; None where only a judge can tell."""
        check = self.check
        if check.answer is not None:
            accepted = check.answer if isinstance(check.answer, list) else [check.answer]
            if not any(same_answer(answer, one) for one in accepted):
                return False
        for state in check.state:
            if not await _holds(state, connection):
                return False
        if check.python is not None and not await _run(check.python, answer, calls):
            return False
        return None if check.judge is not None else True


def same_answer(reply: str, expected: JsonValue) -> bool:
    """Whether the last line of a reply is the expected answer: the same number, or the same words in any case."""
    lines = [line for line in reply.splitlines() if line.strip()]
    said = _bare(lines[-1]) if lines else ""
    wanted = _bare(expected) if isinstance(expected, str) else json.dumps(expected)
    try:
        return float(said.replace(",", "")) == float(wanted.replace(",", ""))
    except ValueError:
        return bool(said) and " ".join(said.split()).casefold() == " ".join(wanted.split()).casefold()


def _bare(text: str) -> str:
    """A text without the quotes, emphasis, currency and full stop around it. Linear in its length."""
    start, end = 0, len(text)
    while start < end and not (text[start].isalnum() or text[start] in "_-"):
        start += 1
    while end > start and not (text[end - 1].isalnum() or text[end - 1] in "_%"):
        end -= 1
    return text[start:end]


async def _holds(state: StateCheck, connection: McpConnection) -> bool:
    result = await connection.call(state.tool, dict(state.arguments))
    if result.is_error:
        raise EnvironmentFailedError(f"the check cannot call {state.tool}: {_value(result)!r:.200}")
    return bool(_value(result) == state.equals)


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


async def _run(code: str, answer: str, calls: Sequence[dict[str, Any]]) -> bool:
    """The result of the task's own function. It came with a file, so it runs in the sandbox."""
    given = json.dumps({"answer": answer, "calls": list(calls)})
    program = f"{code}\n\nimport json as _json\nbool(check(**_json.loads({given!r})))"
    sandbox = Sandbox(LIMITS, workers=1, unsafe=os.environ.get(CONSENT) == "1")
    try:
        result = await sandbox.run(program)
    except SandboxError as error:
        raise EnvironmentFailedError(f"the check cannot be run: {error}") from error
    finally:
        await sandbox.close()
    # A check that raises on an answer does not accept it.
    return result.ok and result.value == "True"


# HTTP with servers that are not trusted: an answer is read up to a limit, and never unpacked.

MAX_BYTES = 100 * 2**20


def limited_client(*, headers: dict[str, str], timeout: httpx2.Timeout | float) -> httpx2.AsyncClient:
    """A client that follows no redirects and reads at most `MAX_BYTES` of an answer."""
    # A packed answer has no size that could be limited before it is unpacked.
    return httpx2.AsyncClient(
        headers={**headers, "Accept-Encoding": "identity"}, timeout=timeout, event_hooks={"response": [_limit]}
    )


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
