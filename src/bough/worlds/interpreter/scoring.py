"""Scores an answer with reasoning-gym's own scorers, where those are sound. Its text runs in a sandbox of its own.

Many scorers give a part of the marks to wrong answers: to a text that contains the right
one among others, to a number near it, to a copy of the question with some cells right. Only
full marks count here: a list of candidates, or the same answer to every problem, must not pay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from fractions import Fraction
from importlib import import_module
from typing import Any

# Many scorers treat NaN and infinity as close to any number.
NOT_FINITE = re.compile(r"(?<![a-z])(nan|inf|infinity)[ij]?(?![a-z])|\d[eE]\+?\d{3}", re.IGNORECASE)


def score(name: str, seed: int, index: int, size: int, question: str, answer: str) -> float | None:
    """The score of the answer; None where the problem is not the one that was asked."""
    entries: Any = import_module("reasoning_gym").create_dataset(name, seed=seed, size=size)
    entry = entries[index]
    if entry["question"] != question:
        return None
    if NOT_FINITE.search(answer) and not NOT_FINITE.search(str(entry["answer"])):
        return 0.0
    compare: Any = COMPARED.get(name, lambda answer, entry: entries.score_answer(answer, entry) == 1.0)
    return float(compare(answer, entry))


def _same_probability(answer: str, entry: dict[str, Any]) -> bool:
    given, right = float(Fraction(answer.replace(",", ""))), float(Fraction(entry["answer"]))
    return abs(given - right) <= min(1e-4, 0.01 * right)


def _same_number(answer: str, entry: dict[str, Any]) -> bool:
    return Fraction(answer.strip().removeprefix("$").replace(",", "")) == Fraction(entry["answer"])


def _same_numbers(answer: str, entry: dict[str, Any]) -> bool:
    given = [Fraction(str(number)) for number in json.loads(answer.replace("'", '"'))]
    return given == [Fraction(number) for number in entry["metadata"]["sorted_numbers"]]


def _same_word(answer: str, entry: dict[str, Any]) -> bool:
    return bool(answer.strip().lower() == entry["answer"].strip().lower())


def _calculates(answer: str, entry: dict[str, Any]) -> bool:
    """Whether a calculation with the problem's numbers, each used once, has the value that is asked for."""
    if not re.fullmatch(r"[0-9 +*/()-]+", answer) or re.search(r"\*\*|//", answer):
        return False
    known = entry["metadata"]
    if sorted(map(int, re.findall(r"\d+", answer))) != sorted(known["numbers"]):
        return False
    return bool(eval(re.sub(r"\d+", r"Fraction(\g<0>)", answer)) == known.get("target", 24))  # noqa: S307  digits and signs


# Where reasoning-gym 0.1.25 evaluates the answer, or gives full marks for "0", for anything at all, for a right
# beginning, or for numbers that are off by one.
COMPARED: dict[str, Callable[[str, dict[str, Any]], bool]] = {
    "coin_flip": _same_probability,
    "countdown": _calculates,
    "game_of_life_halting": _same_word,
    "gsm_symbolic": _same_number,
    "letter_jumble": _same_word,
    "number_sorting": _same_numbers,
    "puzzle24": _calculates,
}
