"""Grades programs: the last ```python block of an answer against its tests, in the sandbox.

The tests are sent when the solution has already run, so that it cannot read them, and
what passed is reported under a number that only the tests know. A solution that returns
an object of its own making, equal to everything, fails.
"""

from __future__ import annotations

import ast
import json
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from bough.environments.interpreter import harness
from bough.environments.interpreter.grade import Grade
from bough.sandbox.base import Result, Runner

TEST_S = 4.0
LONGEST_S = 60.0
_BLOCK = re.compile(r"```[ \t]*+(?:python3?|py)?[ \t]*+\r?\n(.*?)```", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class Exam:
    """What a program must do. `sources` are statements; `entry` is what they call `candidate`."""

    sources: list[str]
    entry: str | None = None
    prelude: str = ""


def split(tests: str | list[str]) -> list[str]:
    """Exam one by one. A function `check(candidate)`, as HumanEval has it, is the statements of its body."""
    sources = []
    for text in [tests] if isinstance(tests, str) else tests:
        for statement in ast.parse(text).body:
            if isinstance(statement, ast.FunctionDef) and statement.name == "check":
                sources += [ast.unparse(part) for part in statement.body]
            else:
                sources.append(ast.unparse(statement))
    # HumanEval ends by calling its own function.
    return [source for source in sources if not re.fullmatch(r"check\(\w+\)", source)]


def counts(source: str) -> bool:
    """Whether a statement is a test, and not what a test needs."""
    return source.lstrip().startswith("assert") or "assert " in source


async def grade(answer: str, tests: Exam, runner: Runner) -> Grade:
    """The fraction of the tests that pass; 0 without a block of Python."""
    code = last_block(answer)
    if code is None:
        return Grade(0.0, {"parsable": False, "reason": "no ```python block that is Python in the answer"})
    session = runner.session()
    async with session:
        if tests.prelude:
            await session.run(tests.prelude)
        solution = await session.run(code)
        if not solution.ok:
            return Grade(0.0, {"parsable": True, "reason": _last_line(solution)})
        name = secrets.token_hex(16)
        marked = [(source, counts(source)) for source in tests.sources]
        longest_s = min(LONGEST_S, TEST_S * len(marked) + 5)
        result = await session.run(_harness(marked, tests, name), timeout_s=longest_s)
    return _read(result, name, sum(count for _, count in marked))


def last_block(text: str) -> str | None:
    """The last fenced block that is Python."""
    for block in reversed(_BLOCK.findall(text)):
        try:
            ast.parse(block)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if block.strip():
            return str(block)
    return None


def _harness(marked: list[tuple[str, bool]], tests: Exam, name: str) -> str:
    text = Path(harness.__file__).read_text()
    return f"{text}\n\nprint(graded({marked!r}, {tests.entry!r}, {_classes(tests.prelude)!r}, {name!r}, {TEST_S!r}))"


def _classes(prelude: str) -> list[str]:
    return [part.name for part in ast.walk(ast.parse(prelude)) if isinstance(part, ast.ClassDef)]


def _read(result: Result, name: str, total: int) -> Grade:
    lines = [line for line in result.stdout.splitlines() if line.startswith(name)]
    try:
        marks, failed = json.loads(lines[-1].removeprefix(name))
    except (IndexError, ValueError):
        return Grade(0.0, {"parsable": True, "passed": 0, "tests": total, "reason": _last_line(result)})
    passed = sum(mark is True for mark in marks)
    details = {"parsable": True, "passed": passed, "tests": total}
    if failed:
        details["reason"] = failed
    return Grade(passed / total if total else 0.0, details)


def _last_line(result: Result) -> str:
    if result.killed or result.timed_out:
        return f"killed: {result.killed or 'time'}"
    return (result.error or "the program ended before its tests").rstrip().rsplit("\n", 1)[-1]
