"""Where marks begin in a text that is still being written."""

from __future__ import annotations

from collections.abc import Callable, Iterable


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
