"""A connection to an MCP server: a command that is started for it, or the URL of a running server."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import IO, Any

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent, Tool

from bough.environments.adapters.limited_http import limited_client
from bough.environments.base import EnvironmentFailedError
from bough.errors import InputError, exception_line

# What a server does wrong is in our error; the client would also print its own traceback of it.
logging.getLogger("mcp").setLevel(logging.CRITICAL)
# How much of what a server wrote to its standard error is shown when it fails.
MAX_LOG = 500
# A server can go on listing them for ever.
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
