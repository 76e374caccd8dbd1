"""Runs cells like a notebook: names persist, the last expression is echoed, tracebacks start in the cell."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import traceback
from collections.abc import Mapping
from types import CodeType, ModuleType, TracebackType
from typing import Any


class Notebook:
    """One `__main__` and the cells that were run in it. `hide` maps paths to what tracebacks show instead."""

    def __init__(self, hide: Mapping[str, str]) -> None:
        self.hide = sorted(hide.items(), key=lambda item: -len(item[0]))
        self.module = ModuleType("__main__")
        self.cells = 0
        sys.modules["__main__"] = self.module

    def run(self, code: str) -> tuple[str | None, str | None]:
        """Returns the echo of the last expression and the traceback, each None if there is none."""
        self.cells += 1
        name = f"<cell {self.cells}>"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        try:
            return self._evaluate(code, name), None
        except SystemExit as end:
            return None, None if end.code in (None, 0) else f"SystemExit: {end.code}"
        except BaseException as error:
            return None, self._traceback(error)

    def _evaluate(self, code: str, name: str) -> str | None:
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self._execute(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True))
        if not isinstance(last, ast.Expr):
            return None
        expression = ast.Expression(last.value)
        value = self._execute(compile(expression, name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True))
        if value is None or _silenced(code, last):
            return None
        self.module.__dict__["_"] = value
        return repr(value)

    def _execute(self, compiled: CodeType) -> Any:
        value = eval(compiled, self.module.__dict__)  # noqa: S307  running code is its purpose
        if compiled.co_flags & inspect.CO_COROUTINE:
            import asyncio

            return asyncio.run(value)
        return value

    def _traceback(self, error: BaseException) -> str:
        try:
            lines = traceback.format_exception(type(error), error, _below(error.__traceback__))
        except BaseException:  # formatting an exception can itself raise
            lines = [f"{type(error).__name__}\n"]
        text = "".join(lines).rstrip("\n")
        for path, seen in self.hide:
            text = text.replace(path, seen)
        return text


def _below(place: TracebackType | None) -> TracebackType | None:
    """The frames of a traceback from the cell on."""
    while place is not None and not place.tb_frame.f_code.co_filename.startswith("<cell "):
        place = place.tb_next
    return place


def _silenced(code: str, last: ast.Expr) -> bool:
    """Whether a semicolon follows the last expression."""
    line = code.split("\n")[(last.end_lineno or 1) - 1]
    return line.encode()[last.end_col_offset or 0 :].lstrip().startswith(b";")
