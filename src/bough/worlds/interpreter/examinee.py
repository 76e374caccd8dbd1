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
}  # fmt: skip


class LateError(BaseException):
    """The call took too long. Not an Exception, which programs catch."""


class Examinee:
    """A program that has run, and the objects that its tests refer to."""

    def __init__(self, space: dict[str, Any], classes: list[str]) -> None:
        self.space, self.classes = space, classes
        self.held: list[Any] = []

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
            names = [kind.__name__ for kind in type(error).__mro__ if vars(builtins).get(kind.__name__) is kind]
            return {"raised": names[0], "said": _said(error)[:1000]}
        except BaseException as error:
            return {"refused": f"{type(error).__name__}: {_said(error)}"[:200]}

    def _do(self, request: dict[str, Any]) -> tuple[Any, Any]:
        """The result; and where a call returns nothing, its arguments as it changed them."""
        operation = request["do"]
        classes = {name: self.space.get(name) for name in self.classes}
        arguments, made = decoded(request["arguments"], classes, self._special)
        if operation == "find":
            return eval(arguments[0], self.space), None  # noqa: S307  the task's
        if operation == "next":
            return list(islice(arguments[0], arguments[1])), None
        if operation != "call":
            return OPERATIONS[operation](*arguments), None
        function, values, named = arguments
        result = function(*values, **named)
        if result is not None:
            return result, None
        tags = [entry[0] for entry in request["arguments"]["heap"]]
        return None, [one if tag in CHANGEABLE else None for tag, one in zip(tags, made, strict=True)]

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
