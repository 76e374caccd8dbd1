"""The host's side of the back ends: one sandbox per event loop, and the four programs that run in it.

The back ends are fixed code, checked by its hash, and a model contributes only JSON
arguments. They still run in a sandbox: some arguments, such as an exponent of a billion,
would otherwise occupy this process for hours. Programs keep nothing: each plays the
episode's calls from the beginning, which takes a few milliseconds.
"""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from bough.sandbox.base import Answer, BrokenError, Result, SandboxError, SandboxLimits
from bough.sandbox.pool import Sandbox
from bough.types import ToolCall
from bough.worlds.functions import benchmark
from bough.worlds.functions.benchmark import Entry

# All calls of an episode together may use this much; time on a busy machine does not count.
LIMITS = SandboxLimits(timeout_s=25.0, cpu_s=2.0, memory_mb=512, processes=2, disk_mb=1, output_bytes=1 << 18)
ERROR = "Error during execution:"
STOPPED = (
    f"{ERROR} the call was stopped. All calls of a conversation together may use {LIMITS.cpu_s:g} s "
    f"of CPU time and {LIMITS.memory_mb} MB of memory."
)
NOT_RUN = f"{ERROR} not run, because an earlier call of the same reply was stopped."
MODULE = "bough_functions"
WARM_UP = """
import sys, types
module = types.ModuleType({name!r})
sys.modules[module.__name__] = module
exec(compile({text!r}, {name!r}, "exec"), module.__dict__)
module.prepare({back_ends!r})
"""
# How a program can end because of its arguments, besides exceeding a limit.
AGENTS_ERRORS = ("MemoryError", "RecursionError", "The process was killed by")
_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, Sandbox] = WeakKeyDictionary()


async def results(
    scenario: dict[str, Any], done: Sequence[ToolCall], calls: Sequence[ToolCall], timeout_s: float = LIMITS.timeout_s
) -> list[str | None]:
    """The results of `calls` after those already `done`; None for a call that was stopped and for those after it."""
    told: list[str] = []

    async def hear(text: str) -> str:
        told.append(text)
        return ""

    request = {"scenario": scenario, "done": plain(done), "calls": plain(calls)}
    program = f"import {MODULE}\n{MODULE}.results({json.dumps(request)!r}, ask)"
    await _run(program, timeout_s, hear)
    return [*told, *[None] * (len(calls) - len(told))]


async def check_turns(
    scenario: dict[str, Any],
    turns: list[list[list[ToolCall]]],
    gold: list[list[ToolCall]],
    timeout_s: float = LIMITS.timeout_s,
) -> str:
    """ "valid", or the benchmark's word for what is wrong in the last of the user turns."""
    played = [[plain(step) for step in steps] for steps in turns]
    return await _verdict("check_turns", timeout_s, scenario=scenario, turns=played, gold=[*map(plain, gold)])


async def check_calls(entry: Entry, calls: Sequence[ToolCall], timeout_s: float = LIMITS.timeout_s) -> str:
    """ "valid", or the benchmark's word for what is wrong with the calls of a single-turn answer."""
    language = entry.set.removeprefix("simple_") if entry.set in benchmark.OTHER_LANGUAGES else "python"
    request = {"functions": entry.row["function"], "calls": plain(calls), "answer": entry.answer}
    return await _verdict("check_calls", timeout_s, set=entry.set, language=language, **request)


def plain(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    return [{"name": call.name, "arguments": call.arguments} for call in calls]


async def close() -> None:
    """Ends the sandbox of this event loop."""
    sandbox = _SHARED.pop(asyncio.get_running_loop(), None)
    if sandbox is not None:
        await sandbox.close()


async def _verdict(function: str, timeout_s: float, **request: Any) -> str:
    result = await _run(f"import {MODULE}\n{MODULE}.{function}({json.dumps(request)!r})", timeout_s)
    return "check_stopped" if result is None or result.value is None else str(ast.literal_eval(result.value))


async def _run(program: str, timeout_s: float, hear: Answer | None = None) -> Result | None:
    """The result of a program; None if the calls broke it. Raises SandboxError if they cannot have."""
    try:
        result = await _sandbox().run(program, timeout_s=min(timeout_s, LIMITS.timeout_s), answer=hear)
    except BrokenError:
        return None
    raised = (result.error or "").rsplit("\n", 1)[-1]
    if result.killed is None and not raised.startswith(AGENTS_ERRORS):
        if result.error is None:
            return result
        raise SandboxError(f"the benchmark cannot be run: {raised}")
    return None


def _sandbox() -> Sandbox:
    loop = asyncio.get_running_loop()
    if loop not in _SHARED:
        text = (Path(__file__).parent / "inside.py").read_text(encoding="utf-8")
        warm_up = WARM_UP.format(name=MODULE, text=text, back_ends=[*benchmark.BACK_ENDS.values()])
        # Where a machine offers no isolation, a process with limits is enough: the code is not the model's.
        packages = (str(benchmark.local_folder()),)
        _SHARED[loop] = Sandbox(LIMITS, unsafe=True, warm_up=warm_up, packages=packages)
    return _SHARED[loop]
