"""What a form of speech is: from a reply to what was said in it, and back."""

from __future__ import annotations

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
