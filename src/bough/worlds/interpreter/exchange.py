"""Passes the tests' calls to the program and its answers back, without trusting the answers."""

from __future__ import annotations

import asyncio
import builtins
import json
from typing import Any

from bough.worlds.interpreter import values

GRACE_S = 1.5  # a program that honours its time-out answers within it
EXCEPTIONS = {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)}


class Exchange:
    """One exam's. `requests` go to the program, `answers` come from it, in turn.

    `verdict` is what the tests say in the end, `ended` why the program answers no more.
    """

    def __init__(self) -> None:
        self.requests: asyncio.Queue[str] = asyncio.Queue()
        self.answers: asyncio.Queue[str] = asyncio.Queue()
        self.verdict: dict[str, Any] = {}
        self.ended: str | None = None

    async def ready(self, limit_s: float) -> str | None:
        """Waits until the program has run; why it failed, if it did."""
        try:
            first = json.loads(await asyncio.wait_for(self.answers.get(), limit_s))
        except TimeoutError:
            self.end("killed: time")
            return self.ended
        except (ValueError, RecursionError):
            return "the program's answer is not readable"
        failed = first.get("ready") if isinstance(first, dict) else ""
        if self.ended is not None:
            return self.ended
        return None if failed is None else str(failed)[:300]

    async def from_program(self, text: str) -> str:
        """Takes the program's answer, and waits for the next request."""
        self.answers.put_nowait(text)
        return await self.requests.get()

    async def from_tests(self, text: str) -> str:
        """Passes a request of the tests on and returns the program's answer; or takes the tests' verdict."""
        message = json.loads(text)
        if "marks" in message:
            self.verdict = message
            return ""
        if self.ended is not None:
            return _refused(self.ended)
        self.requests.put_nowait(text)
        try:
            return checked(await asyncio.wait_for(self.answers.get(), message["limit_s"] + GRACE_S))
        except TimeoutError:
            self.end("the test took too long, and the program was stopped")
            return _refused("the test took too long")

    def dismiss(self) -> None:
        """Tells the program that there are no more requests."""
        self.requests.put_nowait("null")

    def end(self, why: str) -> None:
        """From now on every request is refused."""
        if self.ended is None:
            self.ended = why
            self.answers.put_nowait(_refused(why))


def checked(text: str) -> str:
    """The program's answer if it is well-formed, else a refusal to give to the tests."""
    try:
        answer = json.loads(text)
        if not isinstance(answer, dict):
            raise ValueError("not an object")
        if isinstance(answer.get("refused"), str):
            return _refused(answer["refused"][:200])
        if "raised" in answer:
            if answer["raised"] not in EXCEPTIONS or not isinstance(answer.get("said"), str):
                raise ValueError("an unknown exception")
            return json.dumps({"raised": answer["raised"], "said": answer["said"][:1000]})
        plain = {key: values.checked(answer[key]) for key in ("value", "changed") if key in answer}
        if "value" not in plain:
            raise ValueError("no value")
        return json.dumps(plain)
    except (ValueError, TypeError, RecursionError) as error:
        return _refused(f"the program's answer is not readable: {error}")


def _refused(why: str) -> str:
    return json.dumps({"refused": why})
