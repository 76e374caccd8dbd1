"""The tests' side of an exam: runs the tests, and asks the program for whatever they call.

Runs in a process of its own in which nothing of the program ever runs. What the tests
call is a stand-in here: arguments go out as plain values, results come back as plain
values, and the tests compare those. So a result is exactly what it says, and what the
tests expect stays here.

An object of one of the program's own classes is only ever held by its number. It can be
used where the tests work with it (`stack = Stack(); stack.push(1)`), but it is equal to
no plain value, and nothing is computed from it and a plain value.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any, TypeVar

from bough.worlds.interpreter.values import CHANGEABLE, ValueRefusedError, decoded, encoded, refill

PATIENCE = 5.0
# Modules that are not Python's and that tests use, by the names they go by.
MODULES = {"np": "numpy", "numpy": "numpy"}
T = TypeVar("T")
PLAIN: tuple[type[Any], ...] = (str, bytes, int, float, list, tuple, dict, set)
LITERALS = (
    ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.Compare,
    ast.operator, ast.unaryop, ast.cmpop, ast.expr_context,
)  # fmt: skip


class FailedError(BaseException):
    """The program gave no value that a test could look at. Not an Exception, which tests catch."""


class Stopwatch:
    """The time that one test computes.

    It stands still while the program is asked, which has its own time for each call; a
    test that asks again and again is ended when it has taken many times the limit.
    """

    def __init__(self) -> None:
        self.limit_s = self.left_s = self.end = 0.0
        self.expired = False
        signal.signal(signal.SIGALRM, self._late)

    def start(self, limit_s: float) -> None:
        self.limit_s = self.left_s = limit_s
        self.end = time.monotonic() + PATIENCE * limit_s
        self.expired = False
        self.resume()

    def stop(self) -> None:
        self.left_s = signal.setitimer(signal.ITIMER_REAL, 0)[0]

    def resume(self) -> None:
        # Again each second, for tests that catch it.
        signal.setitimer(signal.ITIMER_REAL, max(0.01, self.left_s), 1.0)

    def _late(self, _: int, __: FrameType | None) -> None:
        self.expired = True
        raise FailedError("the test took too long")


class Examiner:
    """Asks the program. `classes` are the task's own, whose objects cross as their attributes."""

    def __init__(self, ask: Callable[[str], str]) -> None:
        self.ask, self.stopwatch = ask, Stopwatch()
        self.classes: dict[str, Any] = {}
        self.failures: list[str] = []
        self.calls = 0

    def do(self, operation: str, *arguments: Any, objects: bool = False) -> Any:
        """What the program answers; raises what it raised. `objects` is whether an object of its own may come back."""
        try:
            message, sent = encoded(arguments, self.classes, _sent)
        except ValueRefusedError as error:
            raise self.failure(f"the test gives what cannot be sent: {error}") from None
        if time.monotonic() > self.stopwatch.end:
            raise self.failure("the test took too long")
        self.stopwatch.stop()
        request = {"do": operation, "arguments": message, "objects": objects, "limit_s": self.stopwatch.limit_s}
        answer = json.loads(self.ask(json.dumps(request)))
        self.stopwatch.resume()
        if "refused" in answer:
            raise self.failure(answer["refused"])
        if "raised" in answer:
            raise _exception(answer["raised"], answer["said"])

        def received(tag: str, number: int) -> Any:
            if tag == "iterator":
                return Items(self, number)
            if not objects:
                raise ValueRefusedError("an object of the program's own")
            return Held(self, number)

        try:
            value, _ = decoded(answer["value"], self.classes, received)
            if value is None and "changed" in answer:
                self._change(answer["changed"], message["heap"], sent)
        except Exception as error:
            raise self.failure(f"a value that cannot be read: {type(error).__name__}: {error}"[:200]) from None
        return value

    def failure(self, why: str) -> FailedError:
        """What ends the test, and is remembered should the test catch it."""
        self.failures.append(why)
        return FailedError(why)

    def _change(self, message: dict[str, Any], heap: list[Any], sent: list[Any]) -> None:
        """Gives the arguments of a call that returned nothing the content that it gave them."""
        after, _ = decoded(message, self.classes)
        if after is None:
            return
        if not isinstance(after, list) or len(after) != len(sent):
            raise ValueRefusedError("other arguments than were sent")
        ours = {id(new): old for new, old in zip(after, sent, strict=True) if new is not None}
        for (tag, *_), new, old in zip(heap, after, sent, strict=True):
            if tag in CHANGEABLE and type(new) is not type(old):
                raise ValueRefusedError("other arguments than were sent")
            if tag == "class":
                content = {name: ours.get(id(part), part) for name, part in vars(new).items()}
                vars(old).clear()
                vars(old).update(content)
            elif tag in CHANGEABLE:
                parts = [part for pair in new.items() for part in pair] if isinstance(new, dict) else list(new)
                refill(old, tag, [ours.get(id(part), part) for part in parts])


class Items:
    """An iterator of the program's."""

    def __init__(self, examiner: Examiner, number: int) -> None:
        self.examiner, self.number, self.ahead = examiner, number, 1
        self.known: Iterator[Any] = iter(())

    def __iter__(self) -> Items:
        return self

    def __next__(self) -> Any:
        for item in self.known:
            return item
        found = self.examiner.do("next", self, self.ahead)
        if type(found) is not list or not found:
            raise StopIteration
        self.ahead, self.known = min(2 * self.ahead, 1024), iter(found)
        return next(self.known)


class Held:
    """A function, class or object of the program's.

    `name` is what the tests know it by. `made` is whether the tests made it, by calling a class.
    """

    def __init__(self, examiner: Examiner, number: int, *, name: str = "", made: bool = False) -> None:
        vars(self).update(_examiner=examiner, _number=number, _name=name, _made=made)

    def __call__(self, *values: Any, **named: Any) -> Any:
        self._examiner.calls += 1
        # By custom a class has a capital letter, and what its call gives is an object to work with.
        makes = self._name[:1].isupper()
        try:
            result = self._examiner.do("call", self, values, named, objects=makes or not self._name)
        except StopIteration as end:
            if not self._name:
                raise
            # To a loop such as that of all(map(…)) it would say that there is nothing more to test.
            raise RuntimeError("the program raised StopIteration") from end
        return Held(self._examiner, result._number, made=True) if makes and isinstance(result, Held) else result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        others = (*PLAIN, *self._examiner.classes.values())
        if not self._made and not self._name and any(hasattr(kind, name) for kind in others):
            # Such an object would pass for a text, a list or an object of the task's, whose methods say
            # what the tests want to hear.
            raise self._examiner.failure(f"an object of the program's own instead of a value with .{name}")
        return self._examiner.do("attribute", self, name, objects=True)

    def __setattr__(self, name: str, value: Any) -> None:
        self._examiner.do("set_attribute", self, name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self._examiner.do("equal", self, other) is True

    def __hash__(self) -> int:
        return id(self)

    def __iter__(self) -> Items:
        return self._asked("items", Items)

    def __getitem__(self, key: Any) -> Any:
        return self._examiner.do("item", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._examiner.do("set_item", self, key, value)

    def __len__(self) -> int:
        return self._asked("length", int)

    def __bool__(self) -> bool:
        return self._asked("truth", bool)

    def __str__(self) -> str:
        return self._asked("text", str)

    def __repr__(self) -> str:
        return self._asked("shown", str)

    def _asked(self, operation: str, kind: type[T]) -> T:
        found: T = self._examiner.do(operation, self)
        if type(found) is not kind:
            raise self._examiner.failure(f"a {kind.__name__} was expected of the program's object")
        return found


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
    examiner = Examiner(ask)
    end = time.monotonic() + limits_s[1]
    marks: list[bool] = []
    failed = None
    try:
        examiner.stopwatch.start(limits_s[0])
        exec(compile(prelude, "<prelude>", "exec", dont_inherit=True), space)  # noqa: S102  the task's
        examiner.classes = {name: space.get(name) for name in classes}
        space |= {"eval": _literal, "exec": _refused, "compile": _refused}
        _bind(examiner, space, [source for source, _ in tests], entry)
        examiner.stopwatch.stop()
    except BaseException as error:
        examiner.stopwatch.stop()
        marks, failed = [False for _, counts in tests if counts], _said(error)
        tests = []
    for source, counts in tests:
        why = _failing(examiner, source, space, min(limits_s[0], end - time.monotonic()))
        failed = failed or why
        if counts:
            marks.append(why is None)
    if marks and any(marks) and not examiner.calls:
        marks, failed = [False] * len(marks), "the tests never call the program"
    ask(json.dumps({"marks": marks, "failed": failed}))


def _failing(examiner: Examiner, source: str, space: dict[str, Any], limit_s: float) -> str | None:
    """Why a statement fails; None if it does not."""
    examiner.failures.clear()
    if limit_s <= 0:
        return f"{source.strip()[:300]}  # no time is left"
    try:
        examiner.stopwatch.start(limit_s)
        try:
            exec(compile(source, "<test>", "exec", dont_inherit=True), space)  # noqa: S102  the task's
        finally:
            examiner.stopwatch.stop()
        if examiner.failures or examiner.stopwatch.expired:
            raise FailedError([*examiner.failures, "the test took too long"][0])
    except BaseException as error:
        return f"{source.strip()[:300]}  # {_said(error)}"
    return None


def _bind(examiner: Examiner, space: dict[str, Any], sources: list[str], entry: str | None) -> None:
    """Gives the tests stand-ins for what they use of the program's."""
    if entry is not None:
        name = entry.rpartition(".")[2]
        found = examiner.do("find", entry, objects=True)
        space["candidate"] = Held(examiner, found._number, name=name) if isinstance(found, Held) else found
    modules = modules_used(sources, set(space))
    space |= {name: module for name, module in modules.items() if module is not None}
    for name in program_names(sources, entry, {*space, *modules}):
        try:
            found = examiner.do("find", name, objects=True)
        except (Exception, FailedError):
            space.pop(name, None)  # the tests say themselves that it is missing
            continue
        examiner.calls += not isinstance(found, Held)
        space[name] = Held(examiner, found._number, name=name) if isinstance(found, Held) else found


def modules_used(sources: list[str], known: set[str]) -> dict[str, ModuleType | None]:
    """The modules that the tests use and nobody imports, by name; None for one that is not installed.

    Many tests count on the program to import `math`. They get Python's own: a program's
    would say itself what is close to what.
    """
    trees = [ast.parse(source) for source in sources]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    used: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.setdefault(node.value.id, set()).add(node.attr)
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    found: dict[str, ModuleType | None] = {}
    for name in used.keys() - known - stored - _defined(trees) - {"candidate"}:
        module = MODULES.get(name, name)
        if module not in sys.stdlib_module_names and name not in MODULES:
            continue
        try:
            imported = import_module(module)
        except ImportError:
            found[name] = None
            continue
        if all(hasattr(imported, attribute) for attribute in used[name]):
            found[name] = imported
    return found


def program_names(sources: list[str], entry: str | None, known: set[str]) -> list[str]:
    """The names in the tests that the program has to define: those that nobody else does.

    A program cannot take over what the task or Python defines, such as `abs` or a
    comparison of the task's. Where nothing is left, the tests of a function that is
    named like one of Python's (`assert sum(10, 15) == 6`) say which it is: the first
    that each of them calls.
    """
    trees = [ast.parse(source) for source in sources]
    names = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)]
    defined = {node.id for node in names if not isinstance(node.ctx, ast.Load)} | _defined(trees)
    used = dict.fromkeys(node.id for node in names if isinstance(node.ctx, ast.Load))
    own = entry is not None and re.match(r"\w+", entry)
    free = [name for name in used if name not in known | defined | set(vars(builtins)) and name != "candidate"]
    if own and own[0] in used and own[0] not in {*free, *defined}:
        free.append(own[0])
    if free or entry is not None:
        return free
    asserts = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    first = {_first_call(node) for node in asserts}
    return [name for name in first if name is not None] if len(first) == 1 else []


def _defined(trees: list[ast.Module]) -> set[str]:
    found = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.ExceptHandler) and node.name:
                found.add(node.name)
    return found


def _first_call(node: ast.Assert) -> str | None:
    calls = [call for call in ast.walk(node) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)]
    first = min(calls, key=lambda call: (call.lineno, call.col_offset), default=None)
    return first.func.id if first is not None and isinstance(first.func, ast.Name) else None


def _sent(thing: Any) -> tuple[str, Any] | None:
    if isinstance(thing, Held):
        return "object", thing._number
    if isinstance(thing, Items):
        return "iterator", thing.number
    name = getattr(thing, "__name__", "")
    return ("builtin", name) if vars(builtins).get(name) is thing else None


def _exception(name: str, said: str) -> BaseException:
    try:
        error = getattr(builtins, name)(said)
    except TypeError:  # such as UnicodeDecodeError, which wants more
        error = ValueError(said)
    return error if isinstance(error, Exception) else FailedError(said)


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
