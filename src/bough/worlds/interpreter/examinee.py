"""The program's side of an exam: runs the program, then serves the calls of its tests one by one.

Runs in the program's own process, so nothing it says is believed beyond being the
program's answer. It knows neither the tests nor what they expect.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import operator
import signal
import sys
from collections.abc import Callable
from itertools import islice
from types import FrameType
from typing import Any

from bough.worlds.interpreter.values import CHANGEABLE, ValueRefusedError, decoded, encoded

OPERATIONS: dict[str, Callable[..., Any]] = {
    "attribute": getattr, "set_attribute": setattr, "item": operator.getitem, "set_item": operator.setitem,
    "length": len, "truth": bool, "text": str, "shown": repr, "items": iter, "equal": operator.eq,
    "operate": lambda name, left, right: getattr(operator, name)(left, right),
    "order": lambda left, right, name: getattr(operator, name)(left, right),
    "bases": lambda kind: [base.__name__ for base in kind.__mro__ if base.__module__ == "builtins"],
}  # fmt: skip
# The sandbox ends a program that says more than twice as much at once, and escapes may double it.
MAX_ANSWER = 8 << 20


class LateError(BaseException):
    """The call took too long. Not an Exception, which programs catch."""


class Examinee:
    """A program that has run, and the objects that its tests refer to."""

    def __init__(self, space: dict[str, Any], classes: list[str]) -> None:
        self.space, self.classes = space, classes
        self.held: list[Any] = []
        self.ends: dict[int, Exception] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The result of one request: a value, an exception, or why there is neither."""
        try:
            signal.setitimer(signal.ITIMER_REAL, request["limit_s"])
            try:
                result, arguments = self._do(request)
                given = {"value": self._encoded(result, objects=request["objects"])}
                with contextlib.suppress(ValueRefusedError):
                    given["changed"] = self._encoded(arguments, objects=False)
                return given
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except LateError:
            return {"refused": "the test took too long"}
        except ValueRefusedError as error:
            return {"refused": str(error)[:200]}
        except Exception as error:
            said = _said(error)[:1000]
            try:
                arguments = self._encoded(error.args, objects=False)
            except ValueRefusedError:
                arguments = self._encoded((said,), objects=False)
            names = [[kind.__module__, kind.__qualname__] for kind in type(error).__mro__]
            return {"raised": names, "said": said, "value": arguments}
        except BaseException as error:
            return {"refused": f"{type(error).__name__}: {_said(error)}"[:200]}

    def _do(self, request: dict[str, Any]) -> tuple[Any, Any]:
        """The result; and where a call returns nothing or is to change its arguments, these."""
        operation = request["do"]
        classes = {name: self.space.get(name) for name in self.classes}
        arguments, made = decoded(request["arguments"], classes, self._special)
        if operation == "find":
            return eval(arguments[0], self.space), None  # noqa: S307  the task's
        if operation == "next":
            return self._next(*arguments), None
        if operation != "call":
            return OPERATIONS[operation](*arguments), None
        function, values, named = arguments
        result = function(*values, **named)
        if result is not None and not request["changes"]:
            return result, None
        tags = [entry[0] for entry in request["arguments"]["heap"]]
        return result, [one if tag in CHANGEABLE else None for tag, one in zip(tags, made, strict=True)]

    def _next(self, iterator: Any, count: int) -> list[Any]:
        """The next items; what ends them is raised when it is reached."""
        if id(iterator) in self.ends:
            raise self.ends.pop(id(iterator))
        found: list[Any] = []
        try:
            for item in islice(iterator, count):
                found.append(item)
        except Exception as error:
            if not found:
                raise
            self.ends[id(iterator)] = error
        return found

    def _encoded(self, value: object, *, objects: bool) -> dict[str, Any]:
        def special(thing: Any) -> tuple[str, Any] | None:
            iterator = hasattr(type(thing), "__next__")
            if not iterator and not objects:
                return None
            self.held.append(thing)
            return "iterator" if iterator else "object", len(self.held) - 1

        return encoded(value, dict.fromkeys(self.classes), special)[0]

    def _special(self, tag: str, value: Any) -> Any:
        return getattr(builtins, value) if tag == "builtin" else self.held[value]


def serve(ask: Callable[[str], str], prelude: str, code: str, classes: list[str]) -> None:
    """Runs the program, then answers requests until there are no more."""
    space = sys.modules["__main__"].__dict__
    signal.signal(signal.SIGALRM, _late)
    failed = None
    try:
        for name, text in (("<prelude>", prelude), ("<program>", code)):
            exec(compile(text, name, "exec", dont_inherit=True), space)  # noqa: S102  this is what it is for
    except SystemExit as end:
        failed = None if end.code in (None, 0) else f"SystemExit: {end.code}"
    except BaseException as error:
        failed = f"{type(error).__name__}: {_said(error)}"
    examinee = Examinee(space, classes)
    answer: dict[str, Any] = {"ready": failed if failed is None else failed[:300]}
    while True:
        try:
            text = json.dumps(answer)
            if len(text) > MAX_ANSWER:
                text = json.dumps({"refused": "the answer is too long"})
        except BaseException as error:
            text = json.dumps({"refused": type(error).__name__})
        request = json.loads(ask(text))
        if request is None:
            return
        answer = examinee.answer(request)


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # an exception can be built so that it cannot be shown
        return ""


def _late(_: int, __: FrameType | None) -> None:
    raise LateError
