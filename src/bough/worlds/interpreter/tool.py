"""The interpreter as a tool: its description for the agent, and its results as text."""

from __future__ import annotations

import re
from typing import Any

from bough.sandbox.base import Result, SandboxLimits
from bough.types import ToolCall

NAME = "code_interpreter"
RESTARTED = "The interpreter was restarted."
# Addresses of objects carry no meaning and differ from run to run.
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")


def schema(*, persistent: bool) -> dict[str, Any]:
    """The tool as chat templates take it."""
    lasting = "Names defined in one call can be used in the next." if persistent else "Each call starts from nothing."
    return {
        "type": "function",
        "function": {
            "name": NAME,
            "description": f"Runs Python code and returns its output and the value of its last expression. {lasting}",
            "parameters": {
                "type": "object",
                "properties": {"code": {"type": "string", "description": "The Python code to run."}},
                "required": ["code"],
            },
        },
    }


def misuse(call: ToolCall) -> str | None:
    """What is wrong with a call; None if nothing is."""
    if call.name != NAME:
        return f"Error: there is no tool {call.name!r:.80}; the only one is {NAME}."
    if "code" not in call.arguments:
        return f'Error: {NAME} needs the argument "code".'
    if not isinstance(call.arguments["code"], str):
        return 'Error: "code" must be a text.'
    if unknown := [name for name in call.arguments if name != "code"]:
        return f'Error: {NAME} has no argument {unknown[0]!r:.80}; it takes "code" only.'
    return None


def result_text(result: Result, limits: SandboxLimits) -> str:
    """The result of a call as the agent reads it."""
    parts = [result.stdout.rstrip("\n"), result.value or "", result.stderr.rstrip("\n")]
    parts.append("" if result.timed_out else result.error or "")
    if result.timed_out:
        parts.append(f"Error: the code ran longer than {limits.timeout_s:g} s and was stopped.")
    elif result.killed:
        parts.append(f"Error: {_KILLED[result.killed].format(limits=limits)}")
    if result.killed:
        parts.append(RESTARTED)
    return _ADDRESS.sub("0x…", "\n".join(filter(None, parts))) or "(no output)"


def no_time(total_s: float) -> str:
    """The text for a call that was not run."""
    return f"Error: not run. All calls of one reply share {total_s:g} s, and they are used up."


def broken() -> str:
    """The text for a call that broke its interpreter."""
    return f"Error: the code broke the interpreter. {RESTARTED}"


_KILLED = {
    "time": "the code ran longer than {limits.timeout_s:g} s and was stopped.",
    "cpu": "the code computed longer than {limits.cpu_s:g} s and was stopped.",
    "memory": "the code used more than {limits.memory_mb} MB of memory and was stopped.",
    "garbage": "the code wrote into files that are not its own and was stopped.",
    "idle": "not run. The interpreter was idle and had to make room.",
}
