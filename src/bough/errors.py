"""Errors: the user's input was wrong (exit 2), or the work failed (exit 1)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BoughError(Exception):
    """The work failed. The message tells the user what to do."""

    exit_code = 1


class InputError(BoughError, ValueError):
    """The user's input was wrong: where, what, what is allowed, with all problems together."""

    exit_code = 2

    def __init__(self, message: str, problems: Iterable[str] = ()) -> None:
        self.problems = list(problems)
        lines = [message, *(f"  - {problem}" for problem in self.problems)]
        super().__init__("\n".join(lines))


class RowError(ValueError):
    """One row of a data file is bad. `reason` is a short fixed word to count rows by."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """The end of a message: "; did you mean X?", or the allowed words if none is close."""
    allowed = list(allowed)
    close = difflib.get_close_matches(word.replace("-", "_"), [a.replace("-", "_") for a in allowed], n=1)
    if close:
        match = next(a for a in allowed if a.replace("-", "_") == close[0])
        return f"; did you mean {match}?"
    return f"; allowed: {', '.join(allowed)}" if allowed else ""


class RewardRangeError(BoughError):
    """A reward is outside its declared range. The run stops, because nothing should be trained on it."""

    def __init__(self, who: str, task: str, value: float, declared: tuple[float, float]) -> None:
        low, high = declared
        super().__init__(f"{who} gave the reward {value:g} for task {task}; its declared range is {low:g} to {high:g}")
