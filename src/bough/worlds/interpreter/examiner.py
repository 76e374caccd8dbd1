"""The tests' side of an exam: runs the tests, and asks the program for whatever they call.

Runs in a process of its own in which nothing of the program ever runs. What the tests
call is a stand-in (`stand_ins.py`), so a result is exactly what it says, and what the
tests expect stays here.
"""

from __future__ import annotations

import ast
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from bough.worlds.interpreter.names import modules_used, program_names
from bough.worlds.interpreter.stand_ins import Held, Program
from bough.worlds.interpreter.stopwatch import FailedError

LITERALS = (
    ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.Compare,
    ast.operator, ast.unaryop, ast.cmpop, ast.expr_context,
)  # fmt: skip


def examine(
    ask: Callable[[str], str],
    prelude: str,
    classes: list[str],
    tests: list[tuple[str, bool]],
    entry: str | None,
    limits_s: tuple[float, float],
) -> None:
    """Runs the tests and tells the host which of those that count passed, and the first that did not.

    `tests` are statements, each with whether it counts. `entry` is what they call
    `candidate`. `limits_s` are for one call or test and for all tests.
    """
    space = sys.modules["__main__"].__dict__
    program = Program(ask)
    end = time.monotonic() + limits_s[1]
    marks: list[bool] = []
    failed = None
    try:
        program.stopwatch.start(limits_s[0])
        exec(compile(prelude, "<prelude>", "exec", dont_inherit=True), space)  # noqa: S102  the task's
        program.classes = {name: space.get(name) for name in classes}
        space |= {"eval": _literal, "exec": _refused, "compile": _refused}
        _bind(program, space, [source for source, _ in tests], entry)
        program.stopwatch.stop()
    except BaseException as error:
        program.stopwatch.stop()
        marks, failed = [False for _, counts in tests if counts], _said(error)
        tests = []
    for source, counts in tests:
        why = _failing(program, source, space, min(limits_s[0], end - time.monotonic()))
        failed = failed or why
        if counts:
            marks.append(why is None)
    if marks and any(marks) and not program.calls:
        marks, failed = [False] * len(marks), "the tests never call the program"
    ask(json.dumps({"marks": marks, "failed": failed}))


def _failing(program: Program, source: str, space: dict[str, Any], limit_s: float) -> str | None:
    """Why a statement fails; None if it does not."""
    program.failures.clear()
    if limit_s <= 0:
        return f"{source.strip()[:300]}  # no time is left"
    try:
        program.stopwatch.start(limit_s)
        try:
            exec(compile(source, "<test>", "exec", dont_inherit=True), space)  # noqa: S102  the task's
        finally:
            program.stopwatch.stop()
        if program.failures or program.stopwatch.expired:
            raise FailedError([*program.failures, "the test took too long"][0])
    except BaseException as error:
        return f"{source.strip()[:300]}  # {_said(error)}"
    return None


def _bind(program: Program, space: dict[str, Any], sources: list[str], entry: str | None) -> None:
    """Gives the tests stand-ins for what they use of the program's."""
    if entry is not None:
        name = entry.rpartition(".")[2]
        found = program.do("find", entry, objects=True)
        space["candidate"] = Held(program, found._number, name=name) if isinstance(found, Held) else found
    modules = modules_used(sources, set(space))
    space |= {name: module for name, module in modules.items() if module is not None}
    for name in program_names(sources, entry, {*space, *modules}):
        try:
            found = program.do("find", name, objects=True)
        except (Exception, FailedError):
            space.pop(name, None)  # the tests say themselves that it is missing
            continue
        program.calls += not isinstance(found, Held)
        space[name] = Held(program, found._number, name=name) if isinstance(found, Held) else found


def _literal(text: Any, *_: Any) -> Any:
    """`eval` for tests, which may use it on what the program gave: numbers and what is made of them."""
    tree = ast.parse(str(text).strip(), mode="eval")
    if not all(isinstance(node, LITERALS) for node in ast.walk(tree)):
        raise ValueError("eval in tests takes numbers, texts and operators only")
    return eval(compile(tree, "<text>", "eval"), {"__builtins__": {}})  # noqa: S307  nothing in it can be called


def _refused(*_: Any, **__: Any) -> Any:
    raise ValueError("tests cannot run text as code")


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]
