"""Results to compute with, written as strings: "1" solved, "0" failed, "?" unknown, "x" lost; one word per task."""

from typing import Any

from bough.evaluation.results import Lost, ModelResult, Outcome

MEANING: dict[str, bool | None] = {"1": True, "0": False, "?": None}


def outcomes(words: str, **more: Any) -> list[Outcome]:
    """`"11 0?"` is two tasks of two attempts each."""
    return [
        Outcome(task=f"t{number}", digest=f"d{number}", attempt=attempt, success=MEANING[letter], **more)
        for number, word in enumerate(words.split())
        for attempt, letter in enumerate(word)
        if letter != "x"
    ]


def lost(words: str, **more: Any) -> list[Lost]:
    """The lost ones of `"1x xx"`: one of the first task, two of the second."""
    return [
        Lost(task=f"t{number}", digest=f"d{number}", attempt=attempt, why="the browser died", **more)
        for number, word in enumerate(words.split())
        for attempt, letter in enumerate(word)
        if letter == "x"
    ]


def result(name: str, words: str, **more: Any) -> ModelResult:
    return ModelResult(name=name, outcomes=outcomes(words, **more), lost=lost(words))


def binary(solved: str) -> str:
    """`"110"` is three tasks of one attempt each."""
    return " ".join(solved)
