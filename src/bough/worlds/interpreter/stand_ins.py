"""Stand-ins for the program's objects, which pass every use on to it. Runs in the tests' process.

Arguments go out as plain values, and results come back as plain values, which the tests
compare. An object of one of the program's own classes is only held by its number. Tests
can work with it (`stack = Stack(); stack.push(1)`), but it equals no plain value, and
nothing is computed from it and a plain value.
"""

from __future__ import annotations

import builtins
import json
import time
from collections.abc import Callable, Iterator, Sized
from typing import Any, TypeVar

from bough.worlds.interpreter.stopwatch import FailedError, Stopwatch
from bough.worlds.interpreter.values import CHANGEABLE, ValueRefusedError, checked, decoded, encoded, refill

T = TypeVar("T")
PLAIN: tuple[type[Any], ...] = (str, bytes, int, float, list, tuple, dict, set)
EXCEPTIONS = {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)}
# What ends a loop such as that of all(map(…)), or a test. From a program it says neither.
ENDS = {"StopIteration", "StopAsyncIteration", "AssertionError"}


class Program:
    """The program, asked through `ask`. `given` are the values that came from it, by their identity.

    `classes` are the task's own, whose objects are sent as their attributes, and `settable`
    the attributes that the task's code assigns.
    """

    def __init__(self, ask: Callable[[str], str]) -> None:
        self.ask, self.stopwatch = ask, Stopwatch()
        self.classes: dict[str, Any] = {}
        self.settable: set[str] = set()
        self.given: dict[int, Any] = {}
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
        limit = {"limit_s": self.stopwatch.limit_s}
        request = {"do": operation, "arguments": message, "objects": objects, **limit}
        text = self.ask(f"{json.dumps(limit)}\n{json.dumps(request)}")
        self.stopwatch.resume()
        try:
            answer = _read(text)
        except (ValueError, TypeError, RecursionError, MemoryError) as error:
            raise self.failure(f"the program's answer is not readable: {error}"[:200]) from None
        if "refused" in answer:
            raise self.failure(answer["refused"][:200])
        if "raised" in answer:
            raise _exception(answer["raised"], answer["said"])

        def received(tag: str, number: int) -> Any:
            if tag == "iterator":
                return Items(self, number)
            if not objects:
                raise ValueRefusedError("an object of the program's own")
            return Held(self, number)

        try:
            value, parts = decoded(answer["value"], self.classes, received, self.settable)
            if value is None and "changed" in answer:
                self._change(answer["changed"], message["heap"], sent)
        except Exception as error:
            raise self.failure(f"a value that cannot be read: {type(error).__name__}: {error}"[:200]) from None
        for part in (value, *parts):
            self.mark(part)
        return value

    def mark(self, value: Any) -> None:
        """Notes a value as one of the program's if it can be gone through."""
        if isinstance(value, Sized | Iterator) and not isinstance(value, Held):
            self.given[id(value)] = value

    def failure(self, why: str) -> FailedError:
        """The error that ends the test; it is recorded in case the test catches it."""
        self.failures.append(why)
        return FailedError(why)

    def _change(self, message: dict[str, Any], heap: list[Any], sent: list[Any]) -> None:
        """Applies the changes that a call that returned nothing made to its arguments."""
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
                self.mark(old)


class Items:
    """An iterator of the program's."""

    def __init__(self, program: Program, number: int) -> None:
        self.program, self.number, self.ahead = program, number, 1
        self.known: Iterator[Any] = iter(())

    def __iter__(self) -> Items:
        return self

    def __next__(self) -> Any:
        for item in self.known:
            return item
        found = self.program.do("next", self, self.ahead)
        if type(found) is not list:
            raise self.program.failure("a list was expected of the program's iterator")
        if not found:
            raise StopIteration
        self.ahead, self.known = min(2 * self.ahead, 1024), iter(found)
        return next(self.known)


class Held:
    """A function, class or object of the program's.

    `name` is what the tests know it by. `made` is whether the tests made it, by calling a class.
    """

    def __init__(self, program: Program, number: int, *, name: str = "", made: bool = False) -> None:
        vars(self).update(_program=program, _number=number, _name=name, _made=made)

    def __call__(self, *values: Any, **named: Any) -> Any:
        self._program.calls += 1
        # By convention a class starts with a capital letter, and calling it gives an object to work with.
        makes = self._name[:1].isupper()
        result = self._program.do("call", self, values, named, objects=makes or not self._name)
        return Held(self._program, result._number, made=True) if makes and isinstance(result, Held) else result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        others = (*PLAIN, *self._program.classes.values())
        if not self._made and not self._name and any(hasattr(kind, name) for kind in others):
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

    def _asked(self, operation: str, kind: type[T]) -> T:
        found: T = self._program.do(operation, self)
        if type(found) is not kind:
            raise self._program.failure(f"a {kind.__name__} was expected of the program's object")
        return found


def _sent(thing: Any) -> tuple[str, Any] | None:
    if isinstance(thing, Held):
        return "object", thing._number
    if isinstance(thing, Items):
        return "iterator", thing.number
    name = getattr(thing, "__name__", "")
    return ("builtin", name) if vars(builtins).get(name) is thing else None


def _read(text: str) -> dict[str, Any]:
    """The program's answer if it is well-formed."""
    answer = json.loads(text)
    if not isinstance(answer, dict):
        raise ValueError("not an object")
    if isinstance(answer.get("refused"), str):
        return {"refused": answer["refused"]}
    if "raised" in answer:
        if answer["raised"] not in EXCEPTIONS or not isinstance(answer.get("said"), str):
            raise ValueError("an unknown exception")
        return {"raised": answer["raised"], "said": answer["said"][:1000]}
    if "value" not in answer:
        raise ValueError("no value")
    return {key: checked(answer[key]) for key in ("value", "changed") if key in answer}


def _exception(name: str, said: str) -> BaseException:
    if name in ENDS:
        return RuntimeError(f"the program raised {name}: {said}")
    try:
        error = getattr(builtins, name)(said)
    except TypeError:  # such as UnicodeDecodeError, which wants more
        error = ValueError(said)
    return error if isinstance(error, Exception) else FailedError(said)
