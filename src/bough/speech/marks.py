"""Where marks begin in a text that is still being written."""

from __future__ import annotations

from collections.abc import Iterable


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
