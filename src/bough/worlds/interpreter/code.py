"""Grades programs: the last ```python block of an answer against its tests.

Program and tests run in two separate sandboxes. The program gets the arguments of one
call at a time and returns plain values; the tests, which compare them, run where no code
of the program ever runs. Whatever a program does to its own process, it can only choose
its answers.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from bough.sandbox.base import BrokenError, Result, SandboxLimits
from bough.sandbox.pool import Sandbox, Session
from bough.worlds.interpreter import Grade, examinee, examiner, stand_ins, statements, values

# Large answers are allowed; the caller of `grade` limits the total time.
LIMITS = SandboxLimits(timeout_s=60.0, cpu_s=60.0, output_bytes=1 << 20)
TEST_S = 4.0
RUN_S = 10.0
BUDGET_S = 45.0
END_S = 1.0
GRACE_S = 1.5  # a program that honours its time-out answers within it
MAX_FIRST = 8_192  # the first answer only says why the program failed, in a line
_BLOCK = re.compile(r"```[ \t]*+(python3?|py)?[ \t]*+\r?\n(.*?)```", re.DOTALL | re.IGNORECASE)
# The modules that run in each of the two sandboxes, in the order of their imports.
PROGRAM_SIDE = (values, examinee)
TESTS_SIDE = (values, stand_ins, statements, examiner)
# Loads them there, and calls a function of the last one. No name is left for the program to find.
FAR_SIDE = """
import sys, types
for name, text in modules:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
getattr(module, function)(ask, *arguments)
"""


@dataclass(frozen=True)
class Exam:
    """What a program must do. `sources` are statements; `entry` is what they call `candidate`.

    `prelude` is the task's own code; `problem` is the text that says what to write.
    """

    sources: list[str]
    entry: str | None = None
    prelude: str = ""
    problem: str = ""


async def grade(
    answer: str,
    exam: Exam,
    program: Sandbox,
    tests: Sandbox,
    *,
    budget_s: float = BUDGET_S,
) -> Grade:
    """The fraction of the tests that pass; 0 without a block of Python.

    The program runs in `program` and its tests in `tests`, for at most `budget_s`
    together, counted from when both sandboxes are free. Raises SandboxError only where no
    sandbox is available.
    """
    code = last_block(answer)
    if code is None:
        return Grade(0.0, {"parsable": False, "reason": "no ```python block that is Python in the answer"})
    sources = statements.marked(exam.sources)
    wanted, _ = statements.program_names(exam.sources, exam.entry, exam.prelude, exam.problem)
    classes = [part.name for part in ast.walk(ast.parse(exam.prelude)) if isinstance(part, ast.ClassDef)]
    async with program.session() as theirs, tests.session() as ours:
        # The last part of the time is reserved for cleaning up.
        budget_s -= min(END_S, budget_s / 5)
        end = time.monotonic() + budget_s
        cell = _cell(PROGRAM_SIDE, "serve", exam.prelude, code, classes)
        try:
            async with asyncio.timeout(budget_s), _serving(theirs, cell, budget_s) as exchange:
                failed = await exchange.ready(min(RUN_S, budget_s / 2))
                if failed is not None:
                    return Grade(0.0, {"parsable": True, "reason": failed})
                left_s = end - time.monotonic()
                limits_s = TEST_S, left_s - min(END_S, left_s / 5)
                cell = _cell(TESTS_SIDE, "examine", exam.prelude, classes, sources, exam.entry, wanted, limits_s)
                result = await ours.run(cell, timeout_s=max(0.1, left_s), answer=exchange.from_tests)
                verdict, otherwise = exchange.verdict, _last_line(result)
        except (TimeoutError, BrokenError) as error:
            verdict, otherwise = {}, str(error) or "killed: time"
    # There is exactly one mark per test, or none at all.
    total = sum(counts for _, counts in sources)
    marks, reason = verdict.get("marks"), verdict.get("failed")
    if not isinstance(marks, list) or len(marks) != total:
        marks, reason = [], otherwise
    passed = sum(mark is True for mark in marks)
    details = {"parsable": True, "passed": passed, "tests": total} | ({"reason": reason} if reason else {})
    return Grade(passed / total if total else 0.0, details)


def last_block(text: str) -> str | None:
    """The last fenced block that is Python, of those that say so if there are any."""
    blocks = sorted(_BLOCK.findall(text), key=lambda block: bool(block[0]))
    for _, found in reversed(blocks):
        block = textwrap.dedent(found)
        try:
            ast.parse(block)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if block.strip():
            return block
    return None


@asynccontextmanager
async def _serving(session: Session, cell: str, budget_s: float) -> AsyncIterator[Exchange]:
    """The program, ready to be called."""
    exchange = Exchange()
    running = asyncio.create_task(session.run(cell, timeout_s=budget_s, answer=exchange.from_program))

    def ended(task: asyncio.Task[Result]) -> None:
        error = None if task.cancelled() else task.exception()
        exchange.end("the program was stopped" if task.cancelled() else str(error or _last_line(task.result())))

    running.add_done_callback(ended)
    try:
        yield exchange
    finally:
        exchange.dismiss()
        # A program that still runs is killed together with its sandbox.
        try:
            await asyncio.wait([running], timeout=0 if exchange.ended else min(END_S, budget_s / 5))
        finally:
            running.cancel()
            await asyncio.wait([running])
    error = None if running.cancelled() else running.exception()
    if error is not None and not isinstance(error, BrokenError):
        raise error


def _cell(modules: tuple[ModuleType, ...], function: str, *arguments: Any) -> str:
    texts = [(module.__name__, Path(str(module.__file__)).read_text(encoding="utf-8")) for module in modules]
    names = f"'ask': globals().pop('ask'), 'modules': {texts!r}, 'function': {function!r}, 'arguments': {arguments!r}"
    return f"exec({FAR_SIDE!r}, {{{names}}})"


def _last_line(result: Result) -> str:
    if result.killed or result.timed_out:
        return f"killed: {result.killed or 'time'}"
    return (result.error or "the program ended before its tests").rstrip().rsplit("\n", 1)[-1]


class Exchange:
    """Passes the tests' calls to the program and its answers back: `requests` go to it, `answers` come, in turn.

    The host reads no answer: a program chooses what is in it, and so how long it takes to read.
    The tests' process does that, with its limits of time and memory.

    `verdict` is what the tests say in the end, `ended` why the program answers no more.
    """

    def __init__(self) -> None:
        self.requests: asyncio.Queue[str] = asyncio.Queue()
        self.answers: asyncio.Queue[str] = asyncio.Queue()
        self.verdict: dict[str, Any] = {}
        self.ended: str | None = None

    async def ready(self, limit_s: float) -> str | None:
        """Waits until the program has run; why it failed, if it did."""
        try:
            text = await asyncio.wait_for(self.answers.get(), limit_s)
            if len(text) > MAX_FIRST:
                raise ValueError("a long answer")
            first = json.loads(text)
        except TimeoutError:
            self.end("killed: time")
            return self.ended
        except (ValueError, RecursionError):
            return "the program's answer is not readable"
        failed = first.get("ready") if isinstance(first, dict) else ""
        if self.ended is not None:
            return self.ended
        return None if failed is None else str(failed)[:300]

    async def from_program(self, text: str) -> str:
        """Takes the program's answer, and waits for the next request."""
        self.answers.put_nowait(text)
        return await self.requests.get()

    async def from_tests(self, text: str) -> str:
        """Passes a request of the tests on and returns the program's answer; or takes the tests' verdict.

        The first line of a request is for the host, the second for the program.
        """
        head, _, request = text.partition("\n")
        message = json.loads(head)
        if "marks" in message:
            self.verdict = message
            return ""
        if self.ended is not None:
            return _refused(self.ended)
        self.requests.put_nowait(request)
        try:
            return await asyncio.wait_for(self.answers.get(), message["limit_s"] + GRACE_S)
        except TimeoutError:
            self.end("the test took too long, and the program was stopped")
            return _refused("the test took too long")

    def dismiss(self) -> None:
        """Tells the program that there are no more requests."""
        self.requests.put_nowait("null")

    def end(self, why: str) -> None:
        """From now on every request is refused."""
        if self.ended is None:
            self.ended = why
            self.answers.put_nowait(_refused(why))


def _refused(why: str) -> str:
    return json.dumps({"refused": why})
