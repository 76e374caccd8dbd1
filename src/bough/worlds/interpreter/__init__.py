"""A code interpreter: arithmetic, mathematics, code and reasoning, graded in a sandbox."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Grade:
    """`score` is 0 to 1. `details` explain it: what was taken as the answer, what failed."""

    score: float
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def success(self) -> bool:
        return self.score >= 1.0
