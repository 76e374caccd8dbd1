"""Passes the tests' calls to the program and its answers back.

The host reads no answer: a program chooses what is in it, and so how long it takes to read.
The tests' process does that, with its limits of time and memory.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

GRACE_S = 1.5  # a program that honours its time-out answers within it
MAX_FIRST = 8_192  # the first answer only says why the program failed, in a line


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
            text = await asyncio.wait_for(self.answers.get(), limit_s)
            if len(text) > MAX_FIRST:
                raise ValueError("a long answer")
            first = json.loads(text)
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
        """Passes a request of the tests on and returns the program's answer; or takes the tests' verdict.

        The first line of a request is for the host, the second for the program.
        """
        head, _, request = text.partition("\n")
        message = json.loads(head)
        if "marks" in message:
            self.verdict = message
            return ""
        if self.ended is not None:
            return _refused(self.ended)
        self.requests.put_nowait(request)
        try:
            return await asyncio.wait_for(self.answers.get(), message["limit_s"] + GRACE_S)
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


def _refused(why: str) -> str:
    return json.dumps({"refused": why})
