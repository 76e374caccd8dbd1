"""Scores an answer with reasoning-gym's own scorers, where those are sound. Its text runs in a sandbox of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from importlib import import_module
from typing import Any

# Many scorers treat NaN and infinity as close to any number.
NOT_FINITE = re.compile(r"(?<![a-z])(nan|inf|infinity)[ij]?(?![a-z])|\d[eE]\+?\d{3}", re.IGNORECASE)


def score(
    name: str, seed: int, index: int, size: int, question: str, answer: str, numbers: list[int] | None
) -> float | None:
    """The score of the answer; None where the problem is not the one that was asked.

    `numbers` are those of an answer that is a calculation, which must be the problem's own.
    """
    entries: Any = import_module("reasoning_gym").create_dataset(name, seed=seed, size=size)
    entry = entries[index]
    if entry["question"] != question:
        return None
    if numbers is not None and sorted(numbers) != sorted(entry["metadata"]["numbers"]):
        return 0.0
    if NOT_FINITE.search(answer) and not NOT_FINITE.search(str(entry["answer"])):
        return 0.0
    if name in COMPARED:
        try:
            return float(COMPARED[name](answer, entry["answer"]))
        except (ValueError, ZeroDivisionError):
            return 0.0
    return float(entries.score_answer(answer, entry))


def _same_probability(answer: str, known: str) -> bool:
    return abs(float(Fraction(answer.replace(",", ""))) - float(Fraction(known))) <= 1e-4


def _same_word(answer: str, known: str) -> bool:
    return answer.strip().lower() == known.strip().lower()


# Where reasoning-gym 0.1.25 gives full marks for "0" or for anything at all.
COMPARED: dict[str, Callable[[str, str], bool]] = {
    "coin_flip": _same_probability,
    "game_of_life_halting": _same_word,
}
