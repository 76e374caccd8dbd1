import asyncio
from typing import Any

import pytest

from bough.environments.interpreter import math
from bough.sandbox.base import Limits, Result
from bough.sandbox.pool import Sandbox


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        ("so \\boxed{4}", "4"),
        ("\\boxed{1} or \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed {3} and \\boxed{4", "3"),
        ("\\fbox{7}", "7"),
        ("\\boxed{}", ""),
        ("no box", None),
    ],
)
def test_the_last_box_that_is_closed_is_the_answer(text: str, boxed: str | None):
    assert math.last_boxed(text) == boxed


def test_gold_answers_are_found_where_each_file_has_them():
    assert math.gold_answer("12 + 60 = <<12+60=72>>72 clips.\n#### 72") == "72"
    assert math.gold_answer("Thus $x = \\boxed{\\frac{4}{3}}$.") == "\\frac{4}{3}"
    assert math.gold_answer(" (3, -1) ") == "(3, -1)"


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("72", "72", True),
        ("72.0", "72", True),
        ("$1,234$", "1234", True),
        ("1,23", "123", None),
        ("\\frac{1}{2}", "0.5", True),
        ("-\\dfrac{1}{2}", "-1/2", True),
        ("3", "4", False),
        ("1/0", "1", None),
        ("x + 1", "1 + x", None),
        ("\\left( 3, -1 \\right)", "(3,-1)", True),
        ("", "", False),
    ],
)
def test_plain_texts_and_numbers_are_compared_without_algebra(one: str, other: str, equal: bool | None):
    assert math.same(one, other) is equal


def graded(runner: Any, *pairs: tuple[str, str]) -> list[float]:
    async def play() -> list[float]:
        return [(await math.grade(f"\\boxed{{{answer}}}", gold, runner)).score for answer, gold in pairs]

    return asyncio.run(play())


def test_algebra_is_math_verifys_in_the_sandbox():
    pytest.importorskip("math_verify")

    async def play() -> list[float]:
        async with Sandbox(Limits(timeout_s=60), workers=1, warm_up=math.WARM_UP) as sandbox:
            pairs = [
                ("x + 1", "1 + x"),
                ("x + 1", "x + 2"),
                ("\\frac{\\sqrt{8}}{2}", "\\sqrt{2}"),
                ("[0, 3)", "[0,3)"),
                ("(0, 3)", "[0,3)"),
                ("\\{3, 1, 2\\}", "\\{1, 2, 3\\}"),
                ("10\\%", "\\frac{1}{10}"),
                ("{{{", "1 + x"),
                ("'''\\n\\\\", "1 + x"),
            ]
            return [(await math.grade(f"\\boxed{{{a}}}", g, lambda: sandbox)).score for a, g in pairs]

    assert asyncio.run(play()) == [1, 0, 1, 1, 0, 1, 1, 0, 0]


def test_an_answer_that_takes_forever_is_wrong_and_the_next_is_graded():
    pytest.importorskip("math_verify")

    async def play() -> list[Any]:
        async with Sandbox(Limits(), workers=1, warm_up=math.WARM_UP) as sandbox:
            bombs = ["9^{9^{9^{9^{9}}}}", "(" * 2000 + "x" + ")" * 2000]
            grades = [await math.grade(f"\\boxed{{{bomb}}}", "x", lambda: sandbox) for bomb in bombs]
            return [*grades, await math.grade("\\boxed{1 + x}", "x + 1", lambda: sandbox)]

    *bombs, after = asyncio.run(play())
    assert [grade.score for grade in bombs] == [0, 0] and after.score == 1


def test_an_answer_without_a_box_is_wrong_and_said_to_be():
    grade = asyncio.run(math.grade("It is 4.", "4", None))
    assert grade.score == 0 and not grade.success and grade.details["answer"] is None


def test_numbers_are_graded_with_no_sandbox_at_all():
    assert graded(None, ("4", "4"), ("5", "4"), ("four", "4")) == [1, 0, 0]


def test_a_grader_that_fails_says_why():
    class Broken:
        async def run(self, code: str, *, timeout_s: float | None = None) -> Result:
            return Result(error="Traceback\nRecursionError: too deep")

    grade = asyncio.run(math.grade("\\boxed{x}", "y", Broken))  # type: ignore[arg-type]
    assert grade.score == 0 and grade.details["reason"] == "RecursionError: too deep"
