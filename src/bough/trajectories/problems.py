"""Bad rows of a data file, with repeats of one problem grouped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bough.plural import plural

# The first places of a problem are enough to find it; the counts are always complete.
PLACES_SHOWN = 5
GROUPS_SHOWN = 50
# What differs between two messages about the same problem: values in quotes, and numbers.
_VALUE = re.compile(r"'[^']*'|0x[0-9a-f]+|\d+")


@dataclass(frozen=True)
class Problem:
    """One bad row."""

    file: str
    line: int
    reason: str
    message: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass
class ProblemGroup:
    """Rows with the same problem: the first of them, and the places of the first few."""

    first: Problem
    count: int = 0
    places: list[str] = field(default_factory=list)

    def add(self, problem: Problem) -> None:
        self.count += 1
        if len(self.places) < PLACES_SHOWN:
            self.places.append(problem.place)

    def __str__(self) -> str:
        if self.count == 1:
            return str(self.first)
        more = ", …" if self.count > len(self.places) else ""
        return f"{self.first} ({self.count} rows, also {', '.join(self.places[1:])}{more})"

    def to_json(self) -> dict[str, Any]:
        return {
            "reason": self.first.reason,
            "message": self.first.message,
            "count": self.count,
            "first_places": self.places,
        }


class Problems:
    """Collects bad rows in bounded memory. `reasons` counts all of them."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self._groups: dict[tuple[str, str], ProblemGroup] = {}
        self._others = 0

    def add(self, problem: Problem) -> None:
        self.reasons[problem.reason] += 1
        key = (problem.reason, _VALUE.sub("…", problem.message))
        if key not in self._groups and len(self._groups) == GROUPS_SHOWN:
            self._others += 1
            return
        self._groups.setdefault(key, ProblemGroup(problem)).add(problem)

    def __iter__(self) -> Iterator[ProblemGroup]:
        """The groups, in the order in which they were first seen."""
        return iter(self._groups.values())

    def __bool__(self) -> bool:
        return bool(self.reasons)

    def lines(self) -> list[str]:
        """One line per group."""
        more = [f"and {plural(self._others, 'more row')} with other problems"] if self._others else []
        return [*map(str, self), *more]

    def to_json(self) -> list[dict[str, Any]]:
        return [group.to_json() for group in self]
