"""The tests' side of an exam: runs the tests, and asks the program for whatever they call.

Runs in a process of its own in which nothing of the program ever runs. What the tests
call is a stand-in (`stand_ins.py`), so a result is exactly what it says, and what the
tests expect stays here.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import sys
import time
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from bough.worlds.interpreter.names import attributes_set, entry_name, modules_used
from bough.worlds.interpreter.stand_ins import Held, Items, Program
from bough.worlds.interpreter.stopwatch import FailedError

LITERALS = (
    ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.Compare,
    ast.operator, ast.unaryop, ast.cmpop, ast.expr_context,
)  # fmt: skip
# Functions of numpy that stretch an array to the shape of another to compare them.
BROADCASTING = {
    "allclose", "isclose", "array_equiv", "equal", "not_equal", "subtract", "assert_allclose", "assert_almost_equal",
    "assert_array_almost_equal", "assert_array_equal", "assert_equal", "assert_array_almost_equal_nulp",
    "assert_array_max_ulp",
}  # fmt: skip
# What gives a value in another form.
FORMS = {"list", "tuple", "sorted", "set", "dict", "enumerate", "reversed", "iter", "filter", "array", "asarray"}
# The names under which statements find what stands for their calls and operators.
CALLED, OPERATED = "__called__", "__operated__"


def examine(
    ask: Callable[[str], str],
    prelude: str,
    classes: list[str],
    tests: list[tuple[str, bool]],
    entry: str | None,
    names: list[str],
    limits_s: tuple[float, float],
) -> None:
    """Runs the tests and tells the host which of those that count passed, and the first that did not.

    `tests` are statements, each with whether it counts. `entry` is what they call
    `candidate`, `names` what else the program has to define. `limits_s` are for one call or
    test and for all tests.
    """
    space = sys.modules["__main__"].__dict__
    program = Program(ask)
    end = time.monotonic() + limits_s[1]
    marks: list[bool] = []
    failed = None
    try:
        program.stopwatch.start(limits_s[0])
        shapes = Shapes(program)
        space |= {CALLED: shapes.called, OPERATED: shapes.operated}
        exec(_compiled(prelude, "<prelude>"), space)  # noqa: S102  the task's
        program.classes = {name: space.get(name) for name in classes}
        program.settable = attributes_set([prelude, *(source for source, _ in tests)])
        space |= {"eval": _literal, "exec": _refused, "compile": _refused}
        _bind(program, space, [source for source, _ in tests], entry, names)
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
            exec(_compiled(source, "<test>"), space)  # noqa: S102  the task's
        finally:
            program.stopwatch.stop()
        if program.failures or program.stopwatch.expired:
            raise FailedError([*program.failures, "the test took too long"][0])
    except BaseException as error:
        return f"{source.strip()[:300]}  # {_said(error)}"
    return None


def _bind(program: Program, space: dict[str, Any], sources: list[str], entry: str | None, names: list[str]) -> None:
    """Gives the tests stand-ins for what they use of the program's."""
    own = set(space)
    if entry is not None:
        name = entry.rpartition(".")[2]
        found = program.do("find", entry, objects=True)
        space["candidate"] = Held(program, found._number, name=name) if isinstance(found, Held) else found
    modules = modules_used(sources, set(space))
    space |= {name: module for name, module in modules.items() if module is not None}
    for name in names:
        if name in own and name != entry_name(entry):
            continue  # the task has it from a module that only this process could look into
        try:
            found = program.do("find", name, objects=True)
        except (Exception, FailedError):
            space.pop(name, None)  # the tests say themselves that it is missing
            continue
        program.calls += not isinstance(found, Held)
        space[name] = Held(program, found._number, name=name) if isinstance(found, Held) else found


class Shapes:
    """What tests call and compare, except that nothing is compared with less than it should be.

    numpy stretches arrays to a common shape, and finds nothing wrong with an empty one; `zip`
    and `map` stop at the end of the shortest.
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    def called(self, function: Any) -> Any:
        """A function of the tests', or what checks its arguments first."""
        if function is zip:
            return lambda *values, strict=False: zip(*(values if strict else self._lasting(values)), strict=strict)
        if function is map:
            return lambda function, *values: self._formed(map(function, *self._lasting(values)), values)
        name = getattr(function, "__name__", "")
        source = getattr(function, "__self__", None)
        if name in FORMS or id(source) in self.program.given:
            return lambda *values, **named: self._formed(function(*values, **named), (source, *values))
        numpy: Any = sys.modules.get("numpy")
        if numpy is None or name not in BROADCASTING:
            return function
        if not isinstance(function, numpy.ufunc) and not str(function.__module__).startswith("numpy"):
            return function

        def compare(*values: Any, **named: Any) -> Any:
            pair = (*values, *named.values())[:2]
            self._check_shapes(*pair)
            if name == "subtract":
                self._check_finite(*pair)
            return function(*values, **named)

        return compare

    def operated(self, name: str, left: Any, right: Any, whole: bool) -> Any:
        """The operator `name`; `whole` is whether all of its result must hold."""
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and any(isinstance(side, numpy.ndarray | numpy.generic) for side in (left, right)):
            self._check_shapes(left, right, whole=whole)
        if name == "sub":
            self._check_finite(left, right)
        return getattr(operator, name)(left, right)

    def _check_shapes(self, left: Any, right: Any, *, whole: bool = True) -> None:
        """Shapes must be equal, unless one number is compared with all of an array."""
        numpy: Any = sys.modules["numpy"]
        try:
            one, other = numpy.shape(left), numpy.shape(right)
        except (ValueError, TypeError):
            return  # numpy says itself what is wrong with them
        if one != other and ((0 in one) != (0 in other) or (whole and other)):
            raise self.program.failure(f"arrays of the shapes {one} and {other} are compared")

    def _check_finite(self, *sides: Any) -> None:
        """A number of the program's that is not finite has no difference to compare."""
        for side, other in (sides, sides[::-1]):
            if id(side) in self.program.given and _all_finite(other) and not _all_finite(side):
                raise self.program.failure("an infinite or undefined number is compared")

    def _formed(self, value: Any, sources: tuple[Any, ...]) -> Any:
        """A value, marked as the program's if it was made from one of the program's."""
        if any(id(source) in self.program.given or isinstance(source, Held | Items) for source in sources):
            self.program.mark(value)
        return value

    def _lasting(self, values: tuple[Any, ...]) -> list[Any]:
        """Iterables, of which the program's own must not end before the tests' own."""
        theirs = [id(value) in self.program.given or isinstance(value, Held | Items) for value in values]
        most = max((_length(value) for value, own in zip(values, theirs, strict=True) if not own), default=0)
        return [self._last(value, most) if own else value for value, own in zip(values, theirs, strict=True)]

    def _last(self, values: Any, most: int) -> Iterator[Any]:
        number = 0
        for value in values:
            number += 1
            yield value
        if number < most:
            raise self.program.failure(f"{number} values are compared with {most}")


class _Rewriter(ast.NodeTransformer):
    """Passes what tests call, and the equalities and differences that they compute, to `Shapes`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if getattr(node.func, "attr", getattr(node.func, "id", "")) == "all":
            for part in (*node.args[:1], getattr(node.func, "value", None)):
                if isinstance(part, ast.Compare):
                    part.whole = True  # type: ignore[attr-defined]
        self.generic_visit(node)
        node.func = ast.Call(ast.Name(CALLED, ast.Load()), [node.func], [])
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) > 1 or not isinstance(node.ops[0], ast.Eq | ast.NotEq):
            return node
        name = "eq" if isinstance(node.ops[0], ast.Eq) else "ne"
        return _operated(name, node.left, node.comparators[0], whole=getattr(node, "whole", False))

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return _operated("sub", node.left, node.right) if isinstance(node.op, ast.Sub) else node


def _operated(name: str, left: ast.expr, right: ast.expr, *, whole: bool = False) -> ast.expr:
    return ast.Call(ast.Name(OPERATED, ast.Load()), [ast.Constant(name), left, right, ast.Constant(whole)], [])


def _compiled(source: str, name: str) -> CodeType:
    tree = ast.fix_missing_locations(_Rewriter().visit(ast.parse(source)))
    return compile(tree, name, "exec", dont_inherit=True)


def _all_finite(value: Any) -> bool:
    if isinstance(value, int | float):
        return math.isfinite(value)
    numpy: Any = sys.modules.get("numpy")
    try:
        return numpy is not None and bool(numpy.isfinite(value).all())
    except TypeError:  # of texts, dates or anything else
        return False


def _length(value: Any) -> int:
    try:
        return len(value)
    except TypeError:
        return 0


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
