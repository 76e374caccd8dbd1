"""Scores an answer with reasoning-gym's own scorers, where those are sound. Its text runs in a sandbox of its own.

Many scorers give a part of the marks to wrong answers: to a text that contains the right
one among others, to a number near it, to a copy of the question with some cells right. Only
right answers get marks here: a list of candidates, or the same answer to every problem,
must not pay.
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
# The most that a scorer gives to a wrong answer, where it gives less than full marks to right
# ones: those in another format, or valid solutions that are longer than necessary.
MOST_FOR_WRONG = {
    "advanced_geometry": 0.05,
    "binary_matrix": 0.0,
    "futoshiki": 0.89,
    "knight_swap": 0.05,
    "mini_sudoku": 0.89,
    "n_queens": 0.0,
    "shortest_path": 0.0,
    "spiral_matrix": 0.0,
    "string_insertion": 0.0,
    "sudoku": 0.89,
    "tower_of_hanoi": 0.05,
}


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
    if name in REFUSED and REFUSED[name](answer, entry):
        return 0.0
    found = float(entries.score_answer(answer, entry))
    return found if found == 1.0 or MOST_FOR_WRONG.get(name, 1.0) < found < 1.0 else 0.0


def _same_probability(answer: str, known: str) -> bool:
    given, right = float(Fraction(answer.replace(",", ""))), float(Fraction(known))
    return abs(given - right) <= min(1e-4, 0.01 * right)


def _same_number(answer: str, known: str) -> bool:
    return Fraction(answer.strip().removeprefix("$").replace(",", "")) == Fraction(known)


def _same_word(answer: str, known: str) -> bool:
    return answer.strip().lower() == known.strip().lower()


def _not_empty(answer: str, entry: dict[str, Any]) -> bool:
    """Whether an answer names something that is not a number where the right answer is an empty text."""
    return not entry["answer"] and answer.strip("\"' ") != ""


def _more_than(pattern: str) -> Callable[[str, dict[str, Any]], bool]:
    """Whether there is more than an answer: some scorers read its beginning only."""
    return lambda answer, _: re.fullmatch(pattern, answer.strip(" $\n")) is None


def _more_words(answer: str, entry: dict[str, Any]) -> bool:
    return bool(answer.count(",") > entry["answer"].count(","))


def _moves_no_box(answer: str, entry: dict[str, Any]) -> bool:
    """Whether an action of a plan does nothing: a plan of all actions would solve every problem."""
    act = import_module("reasoning_gym.games.boxnet").action_from_response
    state = entry["metadata"]["initial_state"]
    for step in json.loads(answer):
        for agent, action in step.items():
            before, state = state, act(state, [{agent: action}])
            if state == before:
                return True
    return False


def _repeats_a_turn(answer: str, _: dict[str, Any]) -> bool:
    """Whether a turn of a cube has a large count: four turns are none, and a million fill the memory."""
    return re.search(r"\d\d", answer) is not None


def _moves_no_car(answer: str, entry: dict[str, Any]) -> bool:
    """Whether a car is told to go where it cannot: a list of all moves would free the way in the end."""
    board = import_module("reasoning_gym.games.rush_hour").Board(entry["metadata"]["board_config"])
    for car, sign, steps in re.findall(r"([A-Z])([+-])(\d+)", answer):
        for _ in range(int(steps)):
            before = str(board)
            board.move(car, int(f"{sign}1"))
            if str(board) == before:
                return True
    return False


# Where reasoning-gym 0.1.25 gives full marks for "0", for anything at all, or for a right beginning.
COMPARED: dict[str, Callable[[str, str], bool]] = {
    "coin_flip": _same_probability,
    "game_of_life_halting": _same_word,
    "gsm_symbolic": _same_number,
    "letter_jumble": _same_word,
}
# What its scorers take for a solution without its being one.
REFUSED: dict[str, Callable[[str, dict[str, Any]], bool]] = {
    "boxnet": _moves_no_box,
    "fraction_simplification": _more_than(r"\\d?frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\}|\d+\s*/\s*\d+"),
    "polynomial_equations": _not_empty,
    "rubiks_cube": _repeats_a_turn,
    "rush_hour": _moves_no_car,
    "time_intervals": _more_than(r"(?:\d+(?: days?)?)?,? ?(?:\d+(?::\d+){1,2}(?:\.\d+)?)?"),
    "word_sorting": _more_words,
}
