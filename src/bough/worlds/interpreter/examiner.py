"""The tests' side of an exam: runs the tests, and asks the program for whatever they call.

Runs in a process of its own in which nothing of the program ever runs. What the tests
call is a stand-in (`stand_ins.py`), so a result is exactly what it says, and what the
tests expect stays here.
"""

from __future__ import annotations

import ast
import cmath
import json
import operator
import sys
import time
from collections.abc import Callable, Iterator, Sequence, Sized
from decimal import Decimal
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
PAIRING = {"zip", "map"}
# How many literals are kept: loops make new ones.
KEPT = 100_000
# Numbers that are not finite, by the names they have in modules.
ENDLESS = {"inf", "Inf", "infinity", "Infinity", "nan", "NaN", "NAN"}
# What tests expect an exception with, so that what they assert after it is not reached.
EXPECTING = {"raises", "suppress"}
# The names under which statements find what stands for their calls, operators, slices, literals and asserts.
CALLED, OPERATED, SLICED, OWN, ASSERTED = "__called__", "__operated__", "__sliced__", "__own__", "__asserted__"


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
    shapes = Shapes(program)
    end = time.monotonic() + limits_s[1]
    marks: list[bool] = []
    failed = None
    try:
        program.stopwatch.start(limits_s[0])
        space |= {CALLED: shapes.called, OPERATED: shapes.operated, SLICED: shapes.sliced}
        space |= {OWN: shapes.noted, ASSERTED: shapes.asserted}
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
        before = shapes.asserts
        why = _failing(program, source, space, min(limits_s[0], end - time.monotonic()))
        if counts and why is None and shapes.asserts == before:
            why = f"{source.strip()[:300]}  # nothing was asserted"
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
    and `map` stop at the end of the shortest; a loop over nothing asserts nothing. `own` are
    the literals of the tests and other forms of them, by their identity, and `asserts` is how
    many asserts were evaluated.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.own: dict[int, Any] = {}
        self.asserts = 0

    def noted(self, value: Any) -> Any:
        """A literal of the tests. An empty one may yet be filled with the program's values."""
        if not isinstance(value, Sized) or len(value):
            self.own[id(value)] = value
            if len(self.own) > KEPT:
                del self.own[next(iter(self.own))]
        return value

    def asserted(self) -> None:
        """Counts an assert."""
        self.asserts += 1

    def called(self, function: Any) -> Any:
        """A function of the tests', or what checks its arguments first."""
        if function is zip:
            return lambda *values, strict=False: zip(*(values if strict else self._lasting(values)), strict=strict)
        if function is map:
            return lambda function, *values: self._formed(map(function, *self._lasting(values)), values)
        name = getattr(function, "__name__", "")
        source = getattr(function, "__self__", None)
        if name in FORMS or id(source) in self.program.given or id(source) in self.own:
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

    def sliced(self, value: Any, *bounds: Any) -> Any:
        """A part of a value."""
        return self._formed(value[slice(*bounds)], (value,))

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
        """A number that is not finite has no difference to compare, unless the tests wrote it."""
        for side, other in (sides, sides[::-1]):
            if id(side) not in self.own and _endless(side) and not _endless(other):
                raise self.program.failure("an infinite or undefined number is compared")

    def _formed(self, value: Any, sources: tuple[Any, ...]) -> Any:
        """A value, noted as the program's or as the tests' own if it was made from one of those."""
        if any(self._theirs(source) for source in sources):
            self.program.mark(value)
        elif isinstance(value, Sized) and any(id(source) in self.own for source in sources):
            self.noted(value)
        return value

    def _theirs(self, value: Any) -> bool:
        return id(value) in self.program.given or isinstance(value, Held | Items)

    def _lasting(self, values: tuple[Any, ...]) -> list[Any]:
        """Iterables, of which none may end before a literal of the tests, and the program's before no other."""
        others = [value for value in values if not self._theirs(value)]
        most = max(map(_length, others), default=0)
        written = max((_length(value) for value in others if id(value) in self.own), default=0)
        if any(isinstance(value, Sized) and not len(value) for value in others):
            self.asserted()  # nothing is expected
        least = [most if self._theirs(value) else 0 if id(value) in self.own else written for value in values]
        return [self._last(value, number) if number else value for value, number in zip(values, least, strict=True)]

    def _last(self, values: Any, most: int) -> Iterator[Any]:
        number = 0
        for value in values:
            number += 1
            yield value
        if number < most:
            raise self.program.failure(f"{number} values are compared with {most}")


class _Rewriter(ast.NodeTransformer):
    """Passes what tests call, write and assert, and the equalities and differences they compute, to `Shapes`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name == "all":
            for part in (*node.args[:1], getattr(node.func, "value", None)):
                if isinstance(part, ast.Compare):
                    part.whole = True  # type: ignore[attr-defined]
        constant = name == "float" and node.args and isinstance(node.args[0], ast.Constant)
        paired = [part for part in node.args if name in PAIRING and _is_text(part)]
        self.generic_visit(node)
        node.args = [_call(OWN, part) if part in paired else part for part in node.args]
        if not getattr(node, "counted", False):
            node.func = _call(CALLED, node.func)
        if name.startswith("assert") or name in EXPECTING:
            return ast.Subscript(ast.Tuple([_call(ASSERTED), node], ast.Load()), ast.Constant(1), ast.Load())
        return _call(OWN, node) if constant else node

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        self.generic_visit(node)
        return [ast.Expr(_call(ASSERTED)), node]

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        """An exception that a test expects is as good as an assert."""
        self.generic_visit(node)
        node.body.insert(0, ast.Expr(_call(ASSERTED)))
        return node

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        """So is a comparison that decides whether to assert."""
        fails = any(isinstance(part, ast.Assert) and isinstance(part.test, ast.Constant) for part in node.body)
        compares = isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.Eq | ast.NotEq)
        compares = compares and any(isinstance(part, ast.Return | ast.Assert) for part in node.body)
        self.generic_visit(node)
        return [ast.Expr(_call(ASSERTED)), node] if fails or compares else [node]

    def visit_List(self, node: ast.List) -> ast.AST:
        return self._literal(node, node.elts)

    def visit_Tuple(self, node: ast.Tuple) -> ast.AST:
        return self._literal(node, node.elts)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        return self._literal(node, node.keys)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        return _call(OWN, node) if node.attr in ENDLESS and isinstance(node.ctx, ast.Load) else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return _call(OWN, node) if node.id in ENDLESS and isinstance(node.ctx, ast.Load) else node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return _call(OWN, node) if isinstance(node.value, float) and _endless(node.value) else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        own = isinstance(node.operand, ast.Call) and getattr(node.operand.func, "id", "") == OWN
        return _call(OWN, node) if own and isinstance(node.op, ast.USub | ast.UAdd) else node

    def visit_MatchValue(self, node: ast.MatchValue) -> ast.AST:
        """A pattern is not computed: it stays as it is."""
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        index = node.slice
        if isinstance(index, ast.Tuple):  # of an array or a type, and never compared
            index.elts = [self.visit(part) for part in index.elts]
            node.value = self.visit(node.value)
            return node
        self.generic_visit(node)
        if not isinstance(index, ast.Slice) or not isinstance(node.ctx, ast.Load):
            return node
        bounds = (bound or ast.Constant(None) for bound in (index.lower, index.upper, index.step))
        return _call(SLICED, node.value, *bounds)

    def _literal(self, node: ast.List | ast.Tuple | ast.Dict, parts: Sequence[ast.expr | None]) -> ast.AST:
        """A display, noted unless its length is not written."""
        written = parts and not any(part is None or isinstance(part, ast.Starred) for part in parts)
        self.generic_visit(node)
        return _call(OWN, node) if written and isinstance(getattr(node, "ctx", ast.Load()), ast.Load) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
            for pairs, other in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
                if isinstance(other, ast.List | ast.Dict | ast.Tuple):
                    # The literal says itself how many pairs there are.
                    _pairs(pairs).counted = True  # type: ignore[attr-defined]
        self.generic_visit(node)
        if len(node.ops) > 1 or not isinstance(node.ops[0], ast.Eq | ast.NotEq):
            return node
        name = "eq" if isinstance(node.ops[0], ast.Eq) else "ne"
        return _operated(name, node.left, node.comparators[0], whole=getattr(node, "whole", False))

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return _operated("sub", node.left, node.right) if isinstance(node.op, ast.Sub) else node


def _operated(name: str, left: ast.expr, right: ast.expr, *, whole: bool = False) -> ast.expr:
    return _call(OPERATED, ast.Constant(name), left, right, ast.Constant(whole))


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _pairs(node: ast.expr) -> ast.expr:
    """What a list or dict is made from."""
    if isinstance(node, ast.ListComp | ast.DictComp):
        return node.generators[0].iter
    made = isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"list", "tuple", "dict"} and node.args
    return node.args[0] if made else node  # type: ignore[attr-defined]


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _compiled(source: str, name: str) -> CodeType:
    tree = ast.fix_missing_locations(_Rewriter().visit(ast.parse(source)))
    return compile(tree, name, "exec", dont_inherit=True)


def _endless(value: Any) -> bool:
    """Whether a number is infinite or undefined, or any of an array is."""
    if isinstance(value, int):
        return False  # however large
    if isinstance(value, float | complex):
        return not cmath.isfinite(value)
    if isinstance(value, Decimal):
        return not value.is_finite()
    numpy: Any = sys.modules.get("numpy")
    try:
        return numpy is not None and not numpy.isfinite(value).all()
    except (TypeError, ValueError):  # of texts, dates or anything else
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
