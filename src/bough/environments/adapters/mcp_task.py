"""A task for an MCP server, as a row of a task file: what to do, and how it is checked.

    {"instructions": "What do three apples cost?", "check": {"answer": 1.5}}
    {"instructions": "Sell all.", "check": {"state": {"tool": "stock", "arguments": {"item": "apple"}, "equals": 0}}}
    {"instructions": "Use one call.", "check": {"python": "def check(answer, calls): return len(calls) == 1"}}
    {"instructions": "Write to the customer.", "check": {"judge": "Polite, and mentions the refund."}}

Several checks must all hold. `judge` is left to the reward of that name, and success stays unknown.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Sequence
from typing import Any

from mcp.types import CallToolResult, TextContent
from pydantic import Field, JsonValue, field_validator, model_validator

from bough.config.base import Config
from bough.environments.adapters.mcp_client import McpConnection
from bough.environments.base import EnvironmentFailedError
from bough.errors import InputError
from bough.sandbox.base import SandboxError, SandboxLimits
from bough.sandbox.pool import Sandbox
from bough.types import Task

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
    """One task. `tools` limits the tools that are offered."""

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
