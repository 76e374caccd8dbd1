"""Counts as people read them: "1 step", "3 steps", "1,200 replies"."""

from __future__ import annotations

VOWELS = "aeiou"


def plural(number: float, one: str, many: str | None = None) -> str:
    """A number and what it counts: `one` of it, or `many`, by default `one` with the usual ending."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:,g}"
    return f"{shown} {one if number == 1 else many or _usual(one)}"


def _usual(noun: str) -> str:
    if noun.endswith("y") and noun[-2:-1] not in VOWELS:
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
