"""What a form of speech is: from a reply to what was said in it, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from bough.types import ToolCall

# Longer replies are not read: 32,000 tokens are about 130,000 characters.
MAX_REPLY = 1_000_000
MAX_CALLS = 100


class MalformedError(ValueError):
    """The reply is not in the agreed form. The message tells the agent what is wrong and how it is done."""


def check_length(reply: str) -> None:
    """Raises MalformedError where a reply is longer than any that is read."""
    if len(reply) > MAX_REPLY:
        raise MalformedError(f"The reply has {len(reply):,} characters; at most {MAX_REPLY:,} are read.")


@dataclass(frozen=True)
class ParsedReply:
    """What a reply says: why, what is done, and the same as calls where the form has them."""

    thought: str
    action: str
    calls: tuple[ToolCall, ...] = ()


class Speech(Protocol):
    """A form of speech. A module with these three names is one."""

    PROMPT: str

    def parse(self, reply: str) -> ParsedReply:
        """What `reply` says. Raises `MalformedError`."""

    def write(self, action: str, thought: str = "") -> str:
        """The reply that says it."""


# Where marks begin in a text that is still being written.


def first_mark(text: str, marks: Iterable[str], start: int = 0) -> int:
    """Where, from `start` on, the first mark begins, or may begin: at the end of the text one can be incomplete."""
    first = len(text)
    for mark in marks:
        found = text.find(mark, start)
        if found < 0:
            found = max(start, len(text) - len(mark) + 1)
            while (found := text.find(mark[0], found)) >= 0 and not mark.startswith(text[found:]):
                found += 1
        if found >= 0:
            first = min(first, found)
    return first


class BeforeMark:
    """Passes a text on to `on_text` up to a mark, without the white space before it."""

    def __init__(self, mark: str, on_text: Callable[[str], None]) -> None:
        self._mark, self._on_text = mark, on_text
        self._held = ""

    def add(self, text: str) -> None:
        self._held += text
        end = len(self._held[: first_mark(self._held, [self._mark])].rstrip())
        if end:
            self._on_text(self._held[:end])
            self._held = self._held[end:]
