"""What a form of speech is: from a reply to what was said in it, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bough.types import ToolCall


class MalformedError(ValueError):
    """The reply is not in the agreed form. The message tells the agent what is wrong and how it is done."""


@dataclass(frozen=True)
class Said:
    """What a reply says: why, what is done, and the same as calls where the form has them."""

    thought: str
    action: str
    calls: tuple[ToolCall, ...] = ()


class Speech(Protocol):
    """A form of speech. A module with these three names is one."""

    PROMPT: str

    def parse(self, reply: str) -> Said:
        """What `reply` says. Raises `MalformedError`."""

    def write(self, action: str, thought: str = "") -> str:
        """The reply that says it."""
