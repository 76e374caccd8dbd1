"""What learners tell the driver (prints, places, how each ended) and what it tells them: when to stop."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any


class Relay:
    """Keeps it until the driver asks. It runs as an actor on the driver's node."""

    def __init__(self) -> None:
        self._texts: list[tuple[str, str]] = []
        self._places: dict[int, str] = {}
        self._actors: list[Any] = []
        self._outcomes: dict[int, bytes] = {}
        self._stopping = False

    def join(self, rank: int, place: str, actor: Any) -> None:
        """A learner has begun."""
        self._places[rank] = place
        self._actors.append(actor)

    def write(self, stream: str, text: str) -> None:
        """Text that was printed to `stream`, stdout or stderr."""
        self._texts.append((stream, text))

    def end(self, rank: int, outcome: bytes) -> None:
        """A learner's result or error, pickled."""
        self._outcomes[rank] = outcome

    def stop(self) -> None:
        """The driver asks the learners to stop."""
        self._stopping = True

    def stopping(self) -> bool:
        """Whether the learners are asked to stop."""
        return self._stopping

    def read(self) -> list[tuple[str, str]]:
        """What was printed since the last time."""
        texts, self._texts = self._texts, []
        return texts

    def actors(self) -> list[Any]:
        """The learners, as far as they have begun."""
        return self._actors

    def ended(self) -> tuple[dict[int, bytes], dict[int, str]]:
        """The outcomes and the places of the learners by rank."""
        return self._outcomes, self._places


class RelayStream(io.TextIOBase):
    """A text file whose lines go to `send`, with the name of the stream."""

    def __init__(self, name: str, send: Callable[[str, str], object]) -> None:
        self._name, self._send, self._line = name, send, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        lines, newline, rest = (self._line + text).rpartition("\n")
        self._line = rest
        if newline:
            self._send(self._name, lines + newline)
        return len(text)

    def flush(self) -> None:
        """Sends the beginning of a line, too."""
        if self._line:
            self._send(self._name, self._line)
            self._line = ""
