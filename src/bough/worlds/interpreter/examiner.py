"""The tests' side of an exam: runs the tests, and asks the program for whatever they call.

Runs in a process of its own in which nothing of the program ever runs. What the tests
call is a stand-in (`stand_ins.py`), so a result is exactly what it says, and what the
tests expect stays here.

Tests are often weaker than they look: `zip` stops at the end of the shortest, numpy
stretches arrays to a common shape and finds nothing wrong with an empty one, nothing is
greater than NaN, a loop over nothing asserts nothing. Where tests do such a thing with a
value that may be the program's, it goes through `Guards`, which fail the test instead.
"""

from __future__ import annotations

import ast
import builtins
import cmath
import io
import itertools
import json
import math
import operator
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from types import CodeType
from typing import Any

from bough.worlds.interpreter.stand_ins import FailedError, Held, Items, Program
from bough.worlds.interpreter.statements import (
    attributes_set,
    bounds_read,
    called_name,
    entry_name,
    exceptions_expected,
    modules_used,
    origins,
    root,
    uses,
)

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
# What makes one number, or one truth, of all that a comparison or a difference gives.
REDUCING = {"all", "any", "norm"}
SUMMING = REDUCING | {"sum", "max", "amax", "mean", "count_nonzero"}
# They have no end that could be compared.
ENDLESS = (Items, itertools.count, itertools.cycle, itertools.repeat)
OPERATORS = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Sub: "sub",
}  # fmt: skip
# The name under which statements find the guards.
GUARDS = "__guards__"


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
    guards = space[GUARDS] = Guards(program)
    sources = [source for source, _ in tests]
    end = time.monotonic() + limits_s[1]
    marks: list[bool] = []
    failed = None
    try:
        program.stopwatch.start(limits_s[0])
        pickle.Unpickler, pickle.load = _Unpickler, lambda file, **named: _Unpickler(file, **named).load()  # type: ignore[misc]
        pickle.loads = lambda data, **named: _Unpickler(io.BytesIO(data), **named).load()
        rewriter = _Rewriter([prelude, *sources], {*names, "candidate"})
        exec(rewriter.compiled(prelude), space)  # noqa: S102  the task's
        program.classes = {name: space.get(name) for name in classes}
        program.settable = attributes_set([prelude, *sources])
        space |= {"eval": _literal, "exec": _refused, "compile": _refused}
        _bind(program, space, sources, entry, names)
        program.stopwatch.stop()
    except BaseException as error:
        program.stopwatch.stop()
        marks, failed = [False for _, counts in tests if counts], _said(error)
        tests = []
    for source, counts in tests:
        guards.begin()
        why = _failing(program, rewriter, source, space, min(limits_s[0], end - time.monotonic()))
        # Where loops had nothing to assert: of nothing, nothing can be expected.
        nothing = guards.empty_loops > 0 and not guards.asserts and not program.was_given_nothing
        if counts and why is None and nothing:
            why = f"{source.strip()[:300]}  # nothing was asserted"
        failed = failed or why
        if counts:
            marks.append(why is None)
    if marks and any(marks) and not program.calls:
        marks, failed = [False] * len(marks), "the tests never call the program"
    ask(json.dumps({"marks": marks, "failed": failed}))


def _failing(program: Program, rewriter: _Rewriter, source: str, space: dict[str, Any], limit_s: float) -> str | None:
    """Why a statement fails; None if it does not."""
    program.failures.clear()
    if limit_s <= 0:
        return f"{source.strip()[:300]}  # no time is left"
    try:
        program.stopwatch.start(limit_s)
        try:
            exec(rewriter.compiled(source), space)  # noqa: S102  the task's
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
    expected = exceptions_expected(sources)
    for name in names:
        if name in own and name != entry_name(entry):
            continue  # the task has it from a module that only this process could look into
        try:
            found = program.do("find", name, objects=True)
            bases = program.do("bases", found) if name in expected and isinstance(found, Held) else []
        except (Exception, FailedError):
            space.pop(name, None)  # the tests say themselves that it is missing
            continue
        program.calls += not isinstance(found, Held)
        space[name] = Held(program, found._number, name=name) if isinstance(found, Held) else found
        known = [getattr(builtins, base, None) for base in bases if isinstance(base, str)]
        if kinds := [kind for kind in known if isinstance(kind, type) and issubclass(kind, Exception)]:
            space[name] = program.exceptions[name] = type(name, (kinds[0],), {})


class Guards:
    """What statements call in place of the operators and functions that would forgive the program something.

    `asserts` counts what a statement asserted, `empty_loops` its loops over nothing of the program's.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.begin()

    def begin(self) -> None:
        """Begins a statement."""
        self.asserts = self.empty_loops = 0
        self.running: set[int] = set()

    def asserted(self) -> None:
        """Counts an assert."""
        self.asserts += 1

    def each(self, values: Any) -> Iterator[Any]:
        """The values of a loop."""
        number = 0
        for value in values:
            number += 1
            yield value
        self.empty_loops += not number

    def going_on(self, value: Any, loop: int) -> bool:
        """The condition of a `while`."""
        if value:
            self.running.add(loop)
            return True
        self.empty_loops += loop not in self.running
        self.running.discard(loop)
        return False

    def called(self, function: Any, *theirs: int) -> Any:
        """A function, or what checks its arguments first; `theirs` is which may be (1) and are (2) the program's."""
        if function is zip:
            return lambda *values, strict=False: zip(*values, strict=True) if strict else self._aligned(values, theirs)
        if function is map:
            return lambda function, *values: itertools.starmap(function, self._aligned(values, theirs[1:]))
        name = getattr(function, "__name__", "")
        numpy: Any = sys.modules.get("numpy")
        if numpy is None or name not in BROADCASTING:
            return function
        if not isinstance(function, numpy.ufunc) and not str(function.__module__).startswith("numpy"):
            return function

        def compare(*values: Any, **named: Any) -> Any:
            left, right = (*values, *named.values())[:2]
            of_left, of_right = theirs[:2] if len(theirs) > 1 else theirs * 2  # both in one, with a star
            self._check_shapes(left, right, bool(of_left), bool(of_right), whole=True)
            if name == "subtract":
                self._check_finite(left, right, bool(of_left), bool(of_right))
            return function(*values, **named)

        return compare

    def changing(self, function: Any) -> Any:
        """A function that may change its arguments and return something too."""
        if not isinstance(function, Held):
            return function
        return lambda *values, **named: function._called(values, named, changes=True)

    def operated(self, name: str, left: Any, right: Any, *flags: bool) -> Any:
        """The operator `name`; `whole` is whether all of its result must hold, `summed` whether it becomes a number."""
        of_left, of_right, whole, summed = flags
        numpy: Any = sys.modules.get("numpy")
        arrays = numpy is not None and any(isinstance(side, numpy.ndarray | numpy.generic) for side in (left, right))
        if arrays and name in ("eq", "ne", "sub"):
            self._check_shapes(left, right, of_left, of_right, whole=whole, summed=summed)
        if name == "sub":
            self._check_finite(left, right, of_left, of_right)
        elif name not in ("eq", "ne"):
            undefined = _is_undefined(left) or _is_undefined(right)
            if undefined or (of_left and of_right and _is_endless(left) and _is_endless(right)):
                raise self.program.failure("an infinite or undefined number is compared")
        return getattr(operator, name)(left, right)

    def _check_shapes(
        self, left: Any, right: Any, of_left: bool, of_right: bool, *, whole: bool, summed: bool = False
    ) -> None:
        """An answer has the shape of what it is compared with, unless it is a number; if summed, no fewer values."""
        numpy: Any = sys.modules["numpy"]
        try:
            one, other = numpy.shape(left), numpy.shape(right)
        except (ValueError, TypeError):
            return  # numpy says itself what is wrong with them
        stretched = (of_left and other != ()) or (of_right and one != ())
        size, other_size = math.prod(one), math.prod(other)
        fewer = (of_left and size < other_size) or (of_right and other_size < size)
        if one != other and ((0 in one) != (0 in other) or (whole and stretched) or (summed and fewer)):
            raise self.program.failure(f"arrays of the shapes {one} and {other} are compared")

    def _check_finite(self, left: Any, right: Any, of_left: bool, of_right: bool) -> None:
        """A number that is not finite has no difference to compare, unless the tests wrote it."""
        for side, theirs, other in ((left, of_left, right), (right, of_right, left)):
            if theirs and _is_endless(side) and not _is_endless(other):
                raise self.program.failure("an infinite or undefined number is compared")

    def _aligned(self, values: tuple[Any, ...], theirs: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
        """`zip`, except that what may be the program's does not end before anything that is not."""
        if len(theirs) != len(values):  # some were given with a star
            theirs = (int(any(theirs)),) * len(values)
        if min(theirs, default=2) == 2:
            yield from zip(*values, strict=False)
            return
        ended = object()
        iterators = list(map(iter, values))
        for number in itertools.count():
            row: list[Any] = []
            for iterator in iterators:
                row.append(next(iterator, ended))
                if row[-1] is ended:
                    break
            else:
                yield tuple(row)
                continue
            ours = [not (mine or isinstance(value, ENDLESS)) for value, mine in zip(values, theirs, strict=True)]
            if theirs[len(row) - 1]:
                row += [next(iterator, ended) for iterator in iterators[len(row) :]]
                sides = zip(row, values, strict=True)
                if any(item is not ended and not isinstance(value, ENDLESS) for item, value in sides):
                    raise self.program.failure(f"{number} values are compared with more")
            self.asserts += not number and any(ours)  # nothing is expected
            return


class _Rewriter(ast.NodeTransformer):
    """Passes what tests do with values that may be the program's to the guards."""

    def __init__(self, sources: list[str], names: set[str]) -> None:
        self.origins = origins(sources, names)
        self.theirs = self.origins.maybe | self.origins.given
        self.bounds = bounds_read(sources)
        self.loops = itertools.count()

    def compiled(self, source: str) -> CodeType:
        tree = ast.fix_missing_locations(self.visit(ast.parse(source)))
        return compile(tree, "<test>", "exec", dont_inherit=True)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if called_name(node) in SUMMING:
            for part in filter(None, (*node.args[:1], getattr(node.func, "value", None))):
                for inner in ast.walk(part):
                    inner.summed = True  # type: ignore[attr-defined]
                part.whole = called_name(node) in REDUCING
        parts = (*node.args, *node.keywords)
        theirs = [uses(part, self.theirs) + (root(part) in self.origins.surely) for part in parts]
        self.generic_visit(node)
        several = len(theirs) > 1 or any(isinstance(part, ast.Starred) for part in node.args)
        wholes = [
            part.value if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Slice) else part
            for part in node.args
        ]
        # Parts of one list, as in zip(values, values[1:]).
        neighbours = len(wholes) > 1 and len({ast.dump(whole) for whole in wholes}) == 1
        if several and any(theirs) and not getattr(node, "counted", False) and not neighbours:
            node.func = _guard("called", node.func, *map(ast.Constant, theirs))
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) > 1 or type(node.ops[0]) not in OPERATORS:
            return self.generic_visit(node)
        left, right = node.left, node.comparators[0]
        for pairs, other in ((left, right), (right, left)):
            if isinstance(other, ast.List | ast.Dict | ast.Tuple):
                # The literal says itself how many pairs there are, also where a list or dict is made from them.
                made = isinstance(pairs, ast.Call) and called_name(pairs) in {"list", "tuple", "dict"} and pairs.args
                source: Any = pairs.args[0] if made else pairs  # type: ignore[attr-defined]
                if isinstance(pairs, ast.ListComp | ast.DictComp):
                    source = pairs.generators[0].iter
                source.counted = True
        return self._operated(node, node.ops[0], left, right)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        return self._operated(node, node.op, node.left, node.right)

    def visit_For(self, node: ast.For) -> ast.AST:
        if uses(node.iter, self.theirs):
            node.iter = _guard("each", node.iter)
        return self.generic_visit(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        if uses(node.test, self.theirs):
            node.test = _guard("going_on", node.test, ast.Constant(next(self.loops)))
        return self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> list[ast.AST]:
        return [ast.Expr(_guard("asserted")), self.generic_visit(node)]

    def visit_Expr(self, node: ast.Expr) -> list[ast.AST]:
        asserts = isinstance(node.value, ast.Call) and called_name(node.value).startswith("assert")
        return [*([ast.Expr(_guard("asserted"))] if asserts else []), self.generic_visit(node)]

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """`k = f(values)` may also change values if the tests look at `values[:k]`."""
        call = node.value
        self.generic_visit(node)
        if not isinstance(call, ast.Call):
            return node
        given = (*call.args, *(word.value for word in call.keywords))
        if any((root(part), root(node.targets[0])) in self.bounds for part in given):
            call.func = _guard("changing", call.func)
        return node

    def _operated(self, node: ast.AST, sign: ast.AST, left: ast.expr, right: ast.expr) -> ast.AST:
        theirs = [
            uses(part, self.origins.maybe if isinstance(part, ast.Name) else self.theirs)  # a number does not change
            for part in (left, right)
        ]
        # What the program was given may have more values than its answer: a mean, or one of them.
        summed = hasattr(node, "summed") and not (uses(left, self.theirs) and uses(right, self.theirs))
        self.generic_visit(node)
        if type(sign) not in OPERATORS or not any(theirs):
            return node
        flags = map(ast.Constant, (*theirs, getattr(node, "whole", False), summed))
        if isinstance(node, ast.Compare):
            left, right = node.left, node.comparators[0]
        elif isinstance(node, ast.BinOp):
            left, right = node.left, node.right
        return _guard("operated", ast.Constant(OPERATORS[type(sign)]), left, right, *flags)


def _guard(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(GUARDS, ast.Load()), name, ast.Load()), list(arguments), [])


def _is_endless(value: Any) -> bool:
    """Whether a number is infinite or undefined, or any of an array is."""
    if isinstance(value, int | Held):
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


def _is_undefined(value: Any) -> bool:
    """Whether a number is not a number, or any of an array is not."""
    numpy: Any = sys.modules.get("numpy")
    array = numpy is not None and isinstance(value, numpy.ndarray | numpy.generic) and value.dtype.kind in "fc"
    return bool((value != value).any()) if array else isinstance(value, float) and value != value


def _literal(text: Any, *_: Any) -> Any:
    """`eval` for tests, which may use it on what the program gave: numbers and what is made of them."""
    tree = ast.parse(str(text).strip(), mode="eval")
    if not all(isinstance(node, LITERALS) for node in ast.walk(tree)):
        raise ValueError("eval in tests takes numbers, texts and operators only")
    return eval(compile(tree, "<text>", "eval"), {"__builtins__": {}})  # noqa: S307  nothing in it can be called


class _Unpickler(pickle.Unpickler):
    """Reads what is made of numbers and texts. A class or a function in a pickle would run here."""

    def find_class(self, _: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"tests read no {name} from a pickle")


def _refused(*_: Any, **__: Any) -> Any:
    raise ValueError("tests cannot run text as code")


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]
