"""Stand-ins for the program's objects, which pass every use on to it. Runs in the tests' process.

Arguments go out as plain values, and results come back as plain values, which the tests
compare. An object of one of the program's own classes is only held by its number. Tests
can work with it (`stack = Stack(); stack.push(1)`), but it equals no plain value, and
no plain value is computed from it and another one.
"""

from __future__ import annotations

import builtins
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

from bough.worlds.interpreter.values import CHANGEABLE, ValueRefusedError, decoded, encoded, refill

T = TypeVar("T")
# A test may take this many times its limit in all, the time of the program's calls included.
PATIENCE = 5.0
# An iterator is asked for so many items one by one: it may be slow, or fail after those that are wanted.
CAREFUL = 32
PLAIN: tuple[type[Any], ...] = (str, bytes, int, float, list, tuple, dict, set)
# What ends a loop such as that of all(map(…)), or a test. From a program it says neither.
ENDS = (StopIteration, StopAsyncIteration, AssertionError)
OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor")
ORDERS = ("lt", "le", "gt", "ge")


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


class Program:
    """The program, asked through `ask`.

    `classes` are the task's own, whose objects are sent as their attributes, and `settable`
    the attributes that the task's code assigns. `exceptions` are those of the program's that
    the tests expect. `uses` are the attributes that the tests ask of objects they know.
    """

    def __init__(self, ask: Callable[[str], str]) -> None:
        self.ask, self.stopwatch = ask, Stopwatch()
        self.classes: dict[str, Any] = {}
        self.exceptions: dict[str, type[Exception]] = {}
        self.settable: set[str] = set()
        self.uses: set[str] = set()
        self.failures: list[str] = []
        self.calls = 0
        self.was_given_nothing = False

    def do(self, operation: str, *arguments: Any, objects: bool = False, changes: bool = False) -> Any:
        """What the program answers; raises what it raised.

        `objects` is whether an object of its own may come back, `changes` whether a call
        may change its arguments and return something too.
        """
        try:
            message, sent = encoded(arguments, self.classes, _sent)
        except ValueRefusedError as error:
            raise self.failure(f"the test gives what cannot be sent: {error}") from None
        if time.monotonic() > self.stopwatch.end:
            raise self.failure("the test took too long")
        self.stopwatch.stop()
        limit = {"limit_s": self.stopwatch.limit_s}
        request = {"do": operation, "arguments": message, "objects": objects, "changes": changes, **limit}
        text = self.ask(f"{json.dumps(limit)}\n{json.dumps(request)}")
        self.stopwatch.resume()
        try:
            answer = _read(text)
        except (ValueError, TypeError, KeyError, RecursionError, MemoryError) as error:
            raise self.failure(f"the program's answer is not readable: {error}"[:200]) from None
        if "refused" in answer:
            raise self.failure(answer["refused"][:200])

        def received(tag: str, number: int) -> Any:
            if tag == "iterator" and type(number) is int:
                return Items(self, number)
            if tag != "object" or type(number) is not int or not objects:
                raise ValueRefusedError("an object of the program's own")
            return Held(self, number)

        try:
            value, _ = decoded(answer["value"], self.classes, received, self.settable)
            if "raised" not in answer and (value is None or changes) and "changed" in answer:
                self._change(answer["changed"], message["heap"], sent)
        except Exception as error:
            raise self.failure(f"a value that cannot be read: {type(error).__name__}: {error}"[:200]) from None
        if "raised" in answer:
            raise self._exception(answer["raised"], answer["said"], value)
        return value

    def failure(self, why: str) -> FailedError:
        """The error that ends the test; it is recorded in case the test catches it."""
        self.failures.append(why)
        return FailedError(why)

    def _change(self, message: dict[str, Any], heap: list[Any], sent: list[Any]) -> None:
        """Applies the changes that a call made to its arguments."""
        after, _ = decoded(message, self.classes, settable=self.settable)
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

    def _exception(self, names: list[tuple[str, str]], said: str, arguments: Any) -> BaseException:
        """What the program raised: the first of its classes that is known here, with the same text."""
        kind: type[Exception] = Exception
        for module, name in names:
            standard = module.partition(".")[0] in sys.stdlib_module_names
            found = getattr(sys.modules.get(module), name, None) if standard else None
            found = self.exceptions.get(name) if module == "__main__" else found
            if isinstance(found, type) and issubclass(found, Exception):
                kind = found
                break
        if issubclass(kind, ENDS) or kind.__module__.partition(".")[0] == "unittest":
            return RuntimeError(f"the program raised {kind.__name__}: {said}")
        with suppress(Exception):  # not all can be made, or shown, without more than their arguments
            error = kind.__new__(kind, *arguments)
            if str(error) == said:
                return error
        shown = type(kind.__name__, (kind,), {"__str__": lambda _: said})
        return BaseException.__new__(shown, said)


class Items:
    """An iterator of the program's."""

    def __init__(self, program: Program, number: int) -> None:
        self.program, self.number, self.taken = program, number, 0
        self.known: Iterator[Any] = iter(())

    def __iter__(self) -> Items:
        return self

    def __next__(self) -> Any:
        for item in self.known:
            return item
        found = self.program.do("next", self, 1 if self.taken < CAREFUL else min(self.taken, 1024))
        if type(found) is not list:
            raise self.program.failure("a list was expected of the program's iterator")
        if not found:
            raise StopIteration
        self.taken += len(found)
        self.known = iter(found)
        return next(self.known)


class Held:
    """A function, class or object of the program's.

    `name` is what the tests know it by. `made` is whether the tests made it, by calling a class.
    """

    def __init__(self, program: Program, number: int, *, name: str = "", made: bool = False) -> None:
        vars(self).update(_program=program, _number=number, _name=name, _made=made)

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self._called(values, named)

    def _called(self, values: tuple[Any, ...], named: dict[str, Any], *, changes: bool = False) -> Any:
        """Calls it; `changes` where the tests look at what it did to its arguments."""
        given = [value for value in (*values, *named.values()) if isinstance(value, Sized) and type(value) is not Held]
        self._program.calls += 1
        self._program.was_given_nothing = bool(given) and not any(map(len, given))
        # By convention a class starts with a capital letter, and calling it gives an object to work with.
        makes = self._name[:1].isupper()
        result = self._program.do("call", self, values, named, objects=makes or not self._name, changes=changes)
        return Held(self._program, result._number, made=True) if makes and isinstance(result, Held) else result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        others = (*PLAIN, *self._program.classes.values())
        if self._made or self._name:
            self._program.uses.add(name)
        elif name not in self._program.uses and any(hasattr(kind, name) for kind in others):
            # Such an object would pass for a text, a list or an object of the task's, whose methods say
            # what the tests want to hear.
            raise self._program.failure(f"an object of the program's own instead of a value with .{name}")
        return self._program.do("attribute", self, name, objects=True)

    def __setattr__(self, name: str, value: Any) -> None:
        self._program.do("set_attribute", self, name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self._program.do("equal", self, other) is True

    def __hash__(self) -> int:
        return id(self)

    def __iter__(self) -> Items:
        return self._asked("items", Items)

    def __getitem__(self, key: Any) -> Any:
        return self._program.do("item", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._program.do("set_item", self, key, value)

    def __len__(self) -> int:
        return self._asked("length", int)

    def __bool__(self) -> bool:
        return self._asked("truth", bool)

    def __str__(self) -> str:
        return self._asked("text", str)

    def __repr__(self) -> str:
        return self._asked("shown", str)

    def _asked(self, operation: str, kind: type[T], *arguments: Any) -> T:
        found: T = self._program.do(operation, self, *arguments)
        if type(found) is not kind:
            raise self._program.failure(f"a {kind.__name__} was expected of the program's object")
        return found

    def _operated(self, name: str, left: Any, right: Any) -> Any:
        """An operator. Of an object and a plain value it makes another object: a plain result could be a lie."""
        result = self._program.do("operate", name, left, right, objects=True)
        if not isinstance(result, Held) and not (isinstance(left, Held) and isinstance(right, Held)):
            raise self._program.failure("a plain value was computed from an object of the program's own")
        return result


def _define(name: str) -> None:
    def order(self: Held, other: Any) -> Any:
        return self._asked("order", bool, other, name) if isinstance(other, Held) else NotImplemented

    if name in ORDERS:
        setattr(Held, f"__{name}__", order)
    else:
        word = name.rstrip("_")
        setattr(Held, f"__{word}__", lambda self, other: self._operated(name, self, other))
        setattr(Held, f"__r{word}__", lambda self, other: self._operated(name, other, self))


for _name in (*OPERATORS, *ORDERS):
    _define(_name)


def _sent(thing: Any) -> tuple[str, Any] | None:
    if isinstance(thing, Held):
        return "object", thing._number
    if isinstance(thing, Items):
        return "iterator", thing.number
    name = getattr(thing, "__name__", "")
    return ("builtin", name) if vars(builtins).get(name) is thing else None


def _read(text: str) -> dict[str, Any]:
    """The program's answer if it is well-formed. The value of an exception is its arguments."""
    answer = json.loads(text)
    if not isinstance(answer, dict):
        raise ValueError("not an object")
    if isinstance(answer.get("refused"), str):
        return {"refused": answer["refused"]}
    if "value" not in answer:
        raise ValueError("no value")
    if "raised" in answer:
        names = [(str(module), str(name)) for module, name in answer["raised"]]
        return {"raised": names, "said": str(answer["said"])[:1000], "value": answer["value"]}
    return answer
