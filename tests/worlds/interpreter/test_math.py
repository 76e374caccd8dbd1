import asyncio
import json
import lzma
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bough.sandbox.base import Result, SandboxLimits
from bough.sandbox.pool import Sandbox
from bough.worlds.interpreter import Grade, math
from tests.shared_data import shared_data


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
        ("\\boxed{\\boxed{4}}", "4"),
        ("{ \\boxed{1} } } \\boxed{2}", "2"),
        ("\\\\boxed{4}", "4"),
        ("\\boxed{a \\} b}", "a \\} b"),
        ("no box", None),
    ],
)
def test_the_last_box_that_is_closed_is_the_answer(text: str, boxed: str | None):
    assert math.last_boxed(text) == boxed


def test_gold_answers_are_found_where_each_file_has_them():
    assert math.gold_answer("12 + 60 = <<12+60=72>>72 clips.\n#### 72") == "72"
    assert math.gold_answer("Thus $x = \\boxed{\\frac{4}{3}}$.") == "\\frac{4}{3}"
    assert math.gold_answer(" (3, -1) ") == "(3, -1)"


# An answer, the reference, and whether it is right.
RIGHT = True
WRONG = False
NEAR_MISSES = [
    # The question itself, or a step before the answer.
    ("315 \\times 7787", "2452905", WRONG),
    ("315 \\cdot 7787", "2452905", WRONG),
    ("315 * 7787", "2452905", WRONG),
    ("(315)(7787)", "2452905", WRONG),
    ("315(7787)", "2452905", WRONG),
    ("2452905", "2452905", RIGHT),
    ("12 + 60", "72", WRONG),
    ("100 - 28", "72", WRONG),
    ("144/2", "72", WRONG),
    ("\\frac{144}{2}", "72", WRONG),
    ("72/1", "72", WRONG),
    ("8 \\times 9", "72", WRONG),
    ("2^3 \\cdot 3^2", "72", WRONG),
    ("7^{100} \\bmod 13", "9", WRONG),
    ("7^{100} \\pmod{13}", "9", WRONG),
    ("9 \\pmod{13}", "9", WRONG),
    ("2^{10}", "1024", WRONG),
    ("4!", "24", WRONG),
    ("\\binom{5}{2}", "10", WRONG),
    ("\\sqrt{16}", "4", WRONG),
    ("\\sum_{k=1}^{4} k", "10", WRONG),
    ("\\log_2 8", "3", WRONG),
    ("\\lfloor 3.7 \\rfloor", "3", WRONG),
    ("|-3|", "3", WRONG),
    ("--3", "3", WRONG),
    ("0.5 + 0.5", "1", WRONG),
    ("\\sin 90^\\circ", "1", WRONG),
    # Equalities and lists.
    ("x=4=5", "5", WRONG),
    ("4=5", "5", WRONG),
    ("5=5", "5", WRONG),
    ("2+3=5", "5", WRONG),
    ("x = 5", "5", RIGHT),
    ("x=5", "x = 5", RIGHT),
    ("5", "x=5", RIGHT),
    ("y=5", "x=5", WRONG),
    ("\\theta = 45^\\circ", "45^\\circ", RIGHT),
    ("x_1 = 5", "5", RIGHT),
    ("xy = 5", "5", WRONG),
    ("x \\approx 5", "5", WRONG),
    ("1=\\sqrt{2}", "\\sqrt{2}", WRONG),
    ("4, 5", "5", WRONG),
    ("4 \\text{ or } 5", "5", WRONG),
    ("5 or 6", "5", WRONG),
    ("\\pm 5", "5", WRONG),
    ("\\{5\\}", "5", WRONG),
    ("(5, 5)", "5", WRONG),
    ("[5]", "5", WRONG),
    ("5; 6", "5", WRONG),
    ("x < 5", "5", WRONG),
    # Whole numbers and decimals.
    ("72.0", "72", RIGHT),
    ("72.", "72", RIGHT),
    ("+72", "72", RIGHT),
    ("-72", "72", WRONG),
    ("72.5", "72", WRONG),
    ("7.2", "72", WRONG),
    ("1,234", "1234", RIGHT),
    ("1{,}234", "1234", RIGHT),
    ("1,\\!234", "1234", RIGHT),
    ("1\\,234", "1234", RIGHT),
    ("1,23", "123", WRONG),
    ("$1,234$", "1234", RIGHT),
    ("\\text{72}", "72", RIGHT),
    ("\\mathbf{72}", "72", RIGHT),
    ("72x", "72", WRONG),
    ("72i", "72", WRONG),
    ("seventy-two", "72", WRONG),
    ("1.5 \\times 10^{3}", "1500", RIGHT),
    ("1.5e3", "1500", RIGHT),
    ("15 \\times 10^2", "1500", WRONG),
    ("10^3", "1000", WRONG),
    ("0.333", "\\frac{1}{3}", WRONG),
    ("0.\\overline{3}", "\\frac{1}{3}", RIGHT),
    # Fractions.
    ("0.5", "\\frac{1}{2}", RIGHT),
    (".5", "\\frac{1}{2}", RIGHT),
    ("1/2", "\\frac{1}{2}", RIGHT),
    ("\\dfrac{1}{2}", "\\frac12", RIGHT),
    ("\\tfrac 12", "\\frac{1}{2}", RIGHT),
    ("-\\frac{1}{2}", "\\frac{-1}{2}", RIGHT),
    ("\\frac{2}{4}", "\\frac{1}{2}", WRONG),
    ("\\frac{2}{1}", "\\frac{1}{2}", WRONG),
    ("2\\frac{1}{2}", "\\frac{5}{2}", RIGHT),
    ("2 1/2", "2.5", RIGHT),
    ("2\\frac{2}{4}", "2.5", WRONG),
    ("1 - \\frac{1}{2}", "\\frac{1}{2}", WRONG),
    ("\\frac{1}{3} + \\frac{1}{6}", "\\frac{1}{2}", WRONG),
    ("1/0", "1", WRONG),
    # Percent, degrees, money, bases, units.
    ("50\\%", "50\\%", RIGHT),
    ("50", "50\\%", RIGHT),
    ("0.5", "50\\%", WRONG),
    ("50\\%", "0.5", WRONG),
    ("50\\%", "50", RIGHT),
    ("0.5\\%", "50", WRONG),
    ("10\\%", "\\frac{1}{10}", WRONG),
    ("45", "45^\\circ", RIGHT),
    ("45 \\text{ degrees}", "45^{\\circ}", RIGHT),
    ("45°", "45", RIGHT),
    ("\\$18", "18", RIGHT),
    ("18 \\text{ dollars}", "\\$18.00", RIGHT),
    ("\\$18", "18 \\text{ cents}", WRONG),
    ("\\$5\\text{ million}", "5", WRONG),
    ("3 km", "3 cm", WRONG),
    ("3 \\text{ cm}", "3 cm", RIGHT),
    ("3", "3\\text{ cm}", RIGHT),
    ("3\\text{ centimeters}", "3\\text{ cm}", RIGHT),
    ("0.03\\text{ m}", "3\\text{ cm}", WRONG),
    ("3\\text{ cm}^2", "3\\text{ cm}", WRONG),
    ("12\\text{ cm}^2", "12\\text{ square centimeters}", RIGHT),
    ("72 clips", "72", RIGHT),
    ("72\\text{ thousand}", "72", WRONG),
    ("72 dozen", "72", WRONG),
    ("1101_{2}", "1101_2", RIGHT),
    ("1101_3", "1101_2", WRONG),
    ("1101_2", "13", WRONG),
    # Roots, π, complex numbers.
    ("\\sqrt2", "\\sqrt{2}", RIGHT),
    ("\\frac{2}{\\sqrt{2}}", "\\sqrt{2}", WRONG),
    ("\\frac{\\sqrt{8}}{2}", "\\sqrt{2}", WRONG),
    ("1.414", "\\sqrt{2}", WRONG),
    ("2^{1/2}", "\\sqrt{2}", WRONG),
    ("5\\sqrt{3}", "5 \\sqrt 3", RIGHT),
    ("\\sqrt{75}", "5\\sqrt{3}", WRONG),
    ("\\sqrt{12} + \\sqrt{27}", "5\\sqrt{3}", WRONG),
    ("\\frac{1}{\\sqrt{3}}", "\\frac{\\sqrt{3}}{3}", RIGHT),
    ("\\sqrt{3}/3", "\\frac{\\sqrt{3}}{3}", RIGHT),
    ("\\tan 30^\\circ", "\\frac{\\sqrt{3}}{3}", WRONG),
    ("\\frac{1+\\sqrt{5}}{2}", "\\frac{\\sqrt{5} + 1}{2}", RIGHT),
    ("\\frac{1-\\sqrt{5}}{2}", "\\frac{1 + \\sqrt{5}}{2}", WRONG),
    ("2(1+\\sqrt{3})", "2 + 2\\sqrt{3}", RIGHT),
    ("\\frac{2}{3}\\pi", "\\frac{2\\pi}{3}", RIGHT),
    ("\\frac{4\\pi}{6}", "\\frac{2\\pi}{3}", WRONG),
    ("6.28", "2\\pi", WRONG),
    ("\\pi + \\pi", "2\\pi", WRONG),
    ("2π", "2\\pi", RIGHT),
    ("2", "2\\pi", WRONG),
    ("-4i + 3", "3-4i", RIGHT),
    ("(2-i)^2", "3-4i", WRONG),
    ("(2-i)(2-i)", "3-4i", WRONG),
    ("3+4i", "3-4i", WRONG),
    ("", "5", WRONG),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "reference", "right"), NEAR_MISSES)
def test_a_number_is_right_in_its_simplest_form_and_only_then(answer: str, reference: str, right: bool):
    assert graded(None, (answer, reference)) == [float(right)]


@pytest.mark.parametrize(
    ("answer", "reference", "reason"),
    [
        ("x = 1 + x", "x + 1", None),
        ("2 = x + 1", "x + 1", "equation"),
        ("y = x + 1 = 1 + x", "y = x + 1", "equation"),
        ("x + 1, x + 1", "1 + x", "list"),
        ("x \\text{ or } y", "x", "list"),
        ("\\pm x", "x", "list"),
        ("1,000x", "1000x", None),
        ("x >= 5", "x \\geq 5", None),
        ("4^5 \\cdot 2^{90}", "2^{100}", "left to calculate"),
        ("2^{100}", "4^{50}", None),
        ("\\log 100 - 2^{0}", "2^{1}", "left to calculate"),
        ("\\frac{d}{dx} x^2", "2x", "left to calculate"),
        ("\\dfrac{d(x^2)}{dx}", "2x", "left to calculate"),
        ("\\int 2x \\, dx", "x^2", "left to calculate"),
        ("\\sum_{k} k", "\\frac{n(n+1)}{2}", "left to calculate"),
        ("\\sum_k k", "\\sum_j j", None),
        ("\\lim_{h \\to 0} \\frac{(x+h)^2-x^2}{h}", "2x", "left to calculate"),
        ("\\frac{d}{2x}", "\\frac{d}{2x} + 0", None),
        ("(1+2, 4)", "(3, 4)", "left to calculate"),
        ("(\\frac{6}{2}, 4)", "(3, 4)", "left to calculate"),
        ("(1+\\sqrt{2}, 3-4i)", "(\\sqrt{2}+1, -4i+3)", None),
        ("\\begin{pmatrix} 1 \\\\ 1+1 \\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "left to calculate"),
    ],
)
def test_equations_lists_and_calculations_are_not_given_to_algebra(answer: str, reference: str, reason: str | None):
    said = graded_with(Untouchable if reason else Willing, answer, reference).details.get("reason")
    assert (said is None) if reason is None else (said is not None and reason in said)


class Willing:
    """Finds everything equal."""

    async def run(self, code: str, *, timeout_s: float | None = None) -> Result:
        return Result(value="'true'")


class Untouchable:
    async def run(self, code: str, *, timeout_s: float | None = None) -> Result:
        raise AssertionError("the sandbox was asked")


def graded_with(runner: Any, answer: str, reference: str) -> Grade:
    return asyncio.run(math.grade(f"\\boxed{{{answer}}}", reference, runner))


def variants(reference: str) -> list[str]:
    """The same answer, as others write it."""
    found = [reference, f" {reference} ", f"${reference}$", f"x = {reference}", f"{reference}.", f"\\,{reference}"]
    found += [reference.replace("\\frac{", "\\dfrac{"), reference.replace("^\\circ", "^{\\circ}")]
    if re.fullmatch(r"-?\d+", reference):
        found += [f"{int(reference):,}", f"{reference}.0", f"{reference}.00", f"\\text{{{reference}}}"]
        found += [f"\\${reference}", f"{reference} \\text{{ apples}}", f"{int(reference):,}".replace(",", "{,}")]
    if fraction := re.fullmatch(r"(-?)\\frac\{(\d+)\}\{(\d+)\}", reference):
        found += ["{}{}/{}".format(*fraction.groups()), "\\frac{{{}{}}}{{{}}}".format(*fraction.groups())]
    return found


def rows(name: str) -> list[str]:
    with lzma.open(shared_data(f"math/{name}.jsonl.xz"), "rt", encoding="utf-8") as lines:
        answers = [json.loads(line)["answer"] for line in lines]
    return [math.gold_answer(answer) for answer in answers if answer]


def test_every_reference_of_gsm8k_is_right_as_others_write_it():
    references = rows("gsm8k-train")
    assert len(references) == 7_473
    assert [one for one in references if math.same(one, one) is not True] == []
    wrong = [(text, one) for one in references[::9] for text in variants(one) if math.same(text, one) is not True]
    assert wrong == []
    near = [one for one in references[::9] if math.same(f"{one.replace(',', '')}1", one) is not False]
    assert near == []


def test_every_reference_of_math_is_right_as_others_write_it():
    references = rows("math-train")
    assert [one for one in references if math.same(one, one) is not True] == []
    numbers = [one for one in references[::5] if math.same("no number", one) is False]
    assert len(numbers) > len(references) / 5 * 0.85, "seven in eight are numbers"
    wrong = [
        (text, one)
        for one in numbers
        if "=" not in one and "approx" not in one
        for text in variants(one)
        if not math.same(text, one)
    ]
    assert wrong == []
    assert [one for one in numbers if math.same(f"{one} + 1", one) or math.same(f"1 = {one}", one)] == []


def test_every_reference_of_math_is_right_with_its_terms_in_another_order():
    """Grades with what comes before algebra, against the question itself."""
    with lzma.open(shared_data("math/math-train.jsonl.xz"), "rt", encoding="utf-8") as lines:
        problems = [json.loads(line) for line in lines]
    checked = []
    for problem in problems:
        reference = math.gold_answer(problem["answer"] or "")
        if not re.search(r"[-+]", reference[1:]) or re.search(r"[,=<>{\\()]", reference):
            continue
        terms = re.sub(r"(?<!^)([-+])", r" \1", reference.replace(" ", "")).split()
        other = "".join(term if term[0] in "-+" else f"+{term}" for term in reversed(terms)).removeprefix("+")
        checked.append((other, reference, problem["problem"]))
    assert len(checked) > 100
    graded = [asyncio.run(math.grade(f"\\boxed{{{a}}}", b, Willing, question=c)).score for a, b, c in checked]  # type: ignore[arg-type]
    assert [row for row, score in zip(checked, graded, strict=True) if not score] == []


def graded(runner: Any, *pairs: tuple[str, str]) -> list[float]:
    async def play() -> list[float]:
        return [(await math.grade(f"\\boxed{{{answer}}}", gold, runner)).score for answer, gold in pairs]

    return asyncio.run(play())


@pytest.fixture(scope="module")
def algebra() -> Iterator[Callable[..., Grade]]:
    """Grades with math-verify in one sandbox, which takes a second to load it."""
    pytest.importorskip("math_verify")
    with asyncio.Runner() as runner:

        async def made() -> Sandbox:
            return Sandbox(SandboxLimits(timeout_s=60), workers=1, warm_up=math.WARM_UP)

        sandbox = runner.run(made())
        yield lambda text, gold, **more: runner.run(math.grade(f"\\boxed{{{text}}}", gold, lambda: sandbox, **more))
        runner.run(sandbox.close())


def test_algebra_is_math_verifys_in_the_sandbox(algebra: Callable[..., Grade]):
    pairs = [
        ("x + 1", "1 + x"),
        ("x + 1", "x + 2"),
        ("\\frac{\\sqrt[3]{16}}{2}", "\\sqrt[3]{2}"),
        ("[0, 3)", "[0,3)"),
        ("(0, 3)", "[0,3)"),
        ("\\{3, 1, 2\\}", "\\{1, 2, 3\\}"),
        ("(x+1)^2", "x^2 + 2x + 1"),
        ("\\begin{pmatrix} 1/2 \\\\ 3 \\end{pmatrix}", "\\begin{pmatrix} \\frac{1}{2} \\\\ 3 \\end{pmatrix}"),
        ("(2, 1)", "(1, 2)"),
        ("{{{", "1 + x"),
        ("'''\\n\\\\", "1 + x"),
    ]
    assert [algebra(text, gold).score for text, gold in pairs] == [1, 0, 1, 1, 0, 1, 1, 1, 0, 0, 0]


BOMBS = {
    "a tower of powers": "9^9^9^9",
    "a tower in braces": "9^{9^{9^{9^{9}}}}",
    "a million digits": "1" * 10**6,
    "a megabyte": "x" * 2**20,
    "deep brackets": "(" * 2_000 + "x" + ")" * 2_000,
    "deep fractions": "\\frac{1}{" * 300 + "2" + "}" * 300,
    "a large factorial": "10000000!",
    "a large exponent": "1\\times 10^{999999999}",
    "a long power": "(x+1)^{100000}",
    "a lone surrogate": "\ud800",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_huge_answer_to_a_number_is_wrong_without_a_sandbox(name: str):
    assert graded_with(Untouchable, BOMBS[name], "7").score == 0


def test_an_answer_that_takes_forever_is_wrong_and_the_next_is_graded(algebra: Callable[..., Grade]):
    for name in ("a tower of powers", "a million digits", "a megabyte", "a lone surrogate"):
        assert algebra(BOMBS[name], "x").score == 0, name
    slow = algebra(BOMBS["deep brackets"], "x", timeout_s=1.0)
    assert slow.score == 0 and slow.details["reason"] == "time"
    assert algebra("1 + x", "x + 1").score == 1


def test_an_answer_that_breaks_its_grader_is_wrong_and_not_lost(monkeypatch: pytest.MonkeyPatch):
    def broken(text: str) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(math, "read_number", broken)
    grade = graded_with(None, "4", "5")
    assert grade.score == 0 and "RecursionError" in grade.details["reason"]


def test_a_grader_that_fails_says_why():
    class Broken:
        async def run(self, code: str, *, timeout_s: float | None = None) -> Result:
            return Result(error="Traceback\nRecursionError: too deep")

    grade = asyncio.run(math.grade("\\boxed{x}", "y", Broken))  # type: ignore[arg-type]
    assert grade.score == 0 and grade.details["reason"] == "RecursionError: too deep"
    unboxed = asyncio.run(math.grade("It is 4.", "4", None))
    assert unboxed.score == 0 and not unboxed.success and unboxed.details["answer"] is None


@pytest.mark.parametrize(
    ("answer", "reference", "question", "copied"),
    [
        ("(x+1)^2", "x^2+2x+1", "Expand $\\left(x + 1\\right)^{2}$.", True),
        ("x^2 + 2x + 1", "(x+1)^2", "Factor $x^2+2x+1$.", True),
        ("\\frac{x^2-1}{x-1}", "x+1", "Simplify $\\frac{x^2-1}{x-1}$.", True),
        ("(x+1)^2", "x^2+2x+1", "Which polynomial has the double root $-1$?", False),
        ("x+1", "1+x", "Which is a factor of $x^2-1$: $1+x$, which is $x+1$, or $x$?", False),
        ("y", "z", "Solve for $y$.", False),
        # Nothing is left to work out: a choice among numbers, points, intervals, inequalities.
        ("-\\frac{1}{2}", "\\cos 120^\\circ", "Which is it: $-\\frac{1}{2}$ or $\\frac{1}{2}$?", False),
        ("3-4i", "-4i+3+0x", "What is the conjugate of the conjugate of $3-4i$?", False),
        ("(1/2, 3)", "(0.5, 3)", "Which of the points (1/2, 3) and (1/3, 2) is on y = 6x?", False),
        ("[-1/2, 3)", "x \\in [-0.5, 3)", "Is it [-1/2, 3) or (0, 1/3]?", False),
        ("x \\ge -\\frac{1}{2}", "[-0.5, \\infty)", "Is it $x \\ge -\\frac{1}{2}$ or $x < 0$?", False),
        ("2\\sqrt{3}", "\\sqrt{3}+\\sqrt{3}+0x", "Is $2\\sqrt{3}$ or $3\\sqrt{2}$ smaller?", False),
        # The question is in simplest form already, and the reference has another order.
        ("x+1", "1+x", "Simplify $x+1$ if possible.", False),
        ("3x-2y", "-2y+3x", "Simplify $3x-2y$ if possible.", False),
        ("(x-1)(x+1)", "(x+1)(x-1)", "Factor $(x-1)(x+1)$ completely.", False),
        ("a-bi", "a - i \\cdot b", "What is the conjugate of the conjugate of $a-bi$?", False),
        # Numbers, but a calculation is left.
        ("(6/4, 2)", "(3/2, 2)", "Simplify (6/4, 2).", True),
        ("(2)(3)x", "6x", "Simplify $(2)(3)x$.", True),
        ("x+x", "2x", "Add $x+x$.", True),
        ("ab+ba", "2ab", "Simplify $ab+ba$.", True),
        ("x(x+1)", "x^2+x", "Multiply out $x(x+1)$.", True),
        ("\\log 2+\\log 3", "\\log 6", "Combine $\\log 2+\\log 3$.", True),
        ("(x)(x)", "x^2", "Simplify $(x)(x)$.", True),
    ],
)
def test_a_copy_of_the_question_is_not_an_answer(answer: str, reference: str, question: str, copied: bool):
    runner = Untouchable if copied else Willing
    grade = asyncio.run(math.grade(f"\\boxed{{{answer}}}", reference, runner, question=question))  # type: ignore[arg-type]
    assert (grade.score, grade.details.get("reason")) == ((0.0, "it repeats the question") if copied else (1.0, None))


A, B, A_B = (f"\\begin{{pmatrix}}{cells}\\end{{pmatrix}}" for cells in ("1&2\\\\3&4", "0&1\\\\1&0", "2&1\\\\4&3"))
EXPAND = "Expand $(x+2)(x+1)$."
# An answer, the reference, the question, and whether algebra may find it right.
FORMS = [
    # Products, sums and multiples of matrices.
    (A + B, A_B, "Compute $AB$.", WRONG),
    (f"{A} \\cdot {B}", A_B, "Compute $AB$.", WRONG),
    (f"1{A}{B}", A_B, "", WRONG),
    (f"{A}^1{B}", A_B, "", WRONG),
    (f"{A}+{B}", A_B, "", WRONG),
    (f"2{A}", "\\begin{pmatrix}2&4\\\\6&8\\end{pmatrix}", "Compute $2A$.", WRONG),
    ("\\begin{pmatrix}\\sqrt{4}&1\\\\4&3\\end{pmatrix}", A_B, "", WRONG),
    ("\\frac{1}{2}\\begin{pmatrix}2\\\\4\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}", "", WRONG),
    ("\\frac{1}{5}\\begin{pmatrix}3\\\\1\\end{pmatrix}", "\\begin{pmatrix}3/5\\\\1/5\\end{pmatrix}", "", RIGHT),
    ("\\begin{bmatrix}2 & 1\\\\4 & 3\\end{bmatrix}", A_B, "", RIGHT),
    ("\\left[\\begin{matrix}2 & 1\\\\4 & 3\\end{matrix}\\right]", A_B, "", RIGHT),
    ("\\begin{pmatrix}0.6\\\\1/5\\end{pmatrix}", "\\begin{pmatrix}3/5\\\\1/5\\end{pmatrix}", "", RIGHT),
    # Expanded, factored, simplified.
    ("(x+1)(x+2)", "x^2+3x+2", EXPAND, WRONG),
    ("1(x+1)(x+2)", "x^2+3x+2", EXPAND, WRONG),
    ("(x+2)(x+1)+0", "x^2+3x+2", EXPAND, WRONG),
    ("(2+x)\\cdot(1+x)", "x^2+3x+2", EXPAND, WRONG),
    ("(x+1.5)^2-0.25", "x^2+3x+2", EXPAND, WRONG),
    ("x(x+3)+2", "x^2+3x+2", EXPAND, WRONG),
    ("x^2+2x+x+2", "x^2+3x+2", EXPAND, WRONG),
    ("2+3x+x^2", "x^2+3x+2", EXPAND, RIGHT),
    ("x^2 + 3\\cdot x + 2", "x^2+3x+2", EXPAND, RIGHT),
    ("(x+1)(x+2)", "x^2+3x+2", "Which polynomial has the roots $-1$ and $-2$?", RIGHT),
    ("1+2x+x^2", "(x+1)^2", "Factor $x^2+2x+1$.", WRONG),
    ("((x^2+2x+1))", "(x+1)^2", "Factor $x^2+2x+1$.", WRONG),
    ("x(x+2)+1", "(x+1)^2", "Factor $x^2+2x+1$.", WRONG),
    ("(1+x)^2", "(x+1)^2", "Factor $x^2+2x+1$.", RIGHT),
    ("(x+1)(x+1)", "(x+1)^2", "Factor $x^2+2x+1$.", RIGHT),
    ("x^2+2x+1", "(x+1)^2", "What is the area? Each factor of it is a side.", RIGHT),
    ("3x+4x", "7x", "Simplify $4x+3x$.", WRONG),
    ("5x+2x", "7x", "Simplify $4x+3x$.", WRONG),
    ("x\\cdot x\\cdot x", "x^3", "Simplify $x^2x$.", WRONG),
    ("x^{2+1}", "x^3", "Simplify $x^2x$.", WRONG),
    ("\\frac{(x-1)(x+1)}{x-1}", "x+1", "Simplify $\\frac{x^2-1}{x-1}$.", WRONG),
    ("(x^2-1)/(x-1)", "x+1", "Simplify $\\frac{x^2-1}{x-1}$.", WRONG),
    ("6(5w+2)", "30w+12", "Simplify $2w+4w+6w+8w+10w+12$.", RIGHT),
    ("\\frac{1}{2}x+\\frac{3}{2}", "\\frac{x+3}{2}", "Simplify $\\frac{2x+6}{4}$.", RIGHT),
    # Numbers in the parts of a point, a set, an interval, an inequality, an expression.
    ("(\\sqrt{9}, \\sqrt{16})", "(3,4)", "", WRONG),
    ("\\{\\sqrt{9}, 4\\}", "\\{3,4\\}", "", WRONG),
    ("[\\sqrt{9}, 4)", "[3,4)", "", WRONG),
    ("(6/2, 4)", "(3,4)", "", WRONG),
    ("(3/1, 4)", "(3,4)", "", WRONG),
    ("(|-3|, 4)", "(3,4)", "", WRONG),
    ("(3!, 4)", "(6,4)", "", WRONG),
    ("(\\sqrt[3]{27}, 4)", "(3,4)", "", WRONG),
    ("(2\\cdot 3, 4)", "(6,4)", "", WRONG),
    ("x \\ge \\sqrt{9}", "x \\ge 3", "", WRONG),
    ("[\\sqrt{9},\\infty)", "[3,\\infty)", "", WRONG),
    ("y = \\sqrt{4}x+1", "y = 2x+1", "", WRONG),
    ("\\frac{6}{4}x", "\\frac{3}{2}x", "", WRONG),
    ("2\\cdot 3x", "6x", "", WRONG),
    ("6:8", "3:4", "", WRONG),
    ("2^{99}+2^{99}", "2^{100}", "", WRONG),
    ("(2^{10})^{10}", "2^{100}", "", WRONG),
    ("4^{50}", "2^{100}", "", RIGHT),
    ("2\\cdot 3^x", "2(3^x)", "", RIGHT),
    ("\\sqrt[7]{12}", "12^{1/7}", "", RIGHT),
    ("(0.5, \\sqrt{2})", "(\\frac12, \\sqrt2)", "", RIGHT),
    ("(2\\sqrt{3}, 1)", "(\\sqrt{12}, 1)", "", RIGHT),
    ("2 + 3x", "3x+2", "", RIGHT),
    # Approximations.
    ("(0.3333333, 1)", "(\\frac{1}{3}, 1)", "", WRONG),
    ("\\{1.41421356, 1\\}", "\\{\\sqrt{2}, 1\\}", "", WRONG),
    ("[0.3333333, 2)", "[\\frac13, 2)", "", WRONG),
    ("1.7320508", "\\sqrt[3]{\\sqrt{27}}", "", WRONG),
    ("\\begin{pmatrix}0.3333333\\\\2\\end{pmatrix}", "\\begin{pmatrix}1/3\\\\2\\end{pmatrix}", "", WRONG),
    # Several answers at once.
    ("x+2 \\equiv x+1", "x+1", "", WRONG),
    ("x+2 \\implies x+1", "x+1", "", WRONG),
    ("x+2 \\approx x+1", "x+1", "", WRONG), ("x+2 ⇒ x+1", "x+1", "", WRONG), ("x+2 ≈ x+1", "x+1", "", WRONG),
    ("x+2 \\Rightarrow x+1", "x+1", "", WRONG),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "reference", "question", "right"), FORMS)
def test_an_answer_has_the_form_that_is_asked_for_part_by_part(answer: str, reference: str, question: str, right: bool):
    runner = Willing if right else Untouchable
    grade = asyncio.run(math.grade(f"\\boxed{{{answer}}}", reference, runner, question=question))  # type: ignore[arg-type]
    assert grade.score == float(right), grade.details


# What pays nothing, whether it is refused or found to be different, and what is right in spite of its spelling.
CLAIMS = [
    ("[4,6]", "5", 0), ("4 \\le x \\le 6", "5", 0), ("\\infty", "5", 0), ("nan", "5", 0), ("3.0000001", "3", 0),
    ("5\\text{ (or 6)}", "5", 0), ("5\\text{ six seven}", "5", 0), ("\\text{E or A}", "\\text{E}", 0),
    ("\\text{A,B,C,D,E}", "\\text{E}", 0), ("\\text{odd even}", "\\text{odd}", 0), ("2x \\text{ cm}>6", "x>3", 0),
    ("(-\\infty,\\infty)", "(0,5)", 0), ("[0,3] \\cup (0,3)", "[0,3)", 0), ("[4,6]", "(4,6)", 0), ("1,2,3", "1,2", 0),
    ("(1,2),(3,4)", "(1,2)", 0), ("\\{4,6\\}", "(6,4)", 0), ("x+2$ and $x+1", "x+1", 0), ("x+2$, $x+1", "x+1", 0),
    ("\\begin{cases} x+1 \\\\ x+2 \\end{cases}", "x+1", 0), ("0=0", "2x-y+3z+8=0", 0), ("x=x", "y=-2x+1", 0),
    ("f(x)", "x^2+1", 0), ("x \\pmod{7}", "x", 0), ("\\mp x", "x", 0), ("x+2 \\ne x+1", "x+1", 0),
    ("\\log_2 2^{x}", "x", 0), ("x+2 \\to x+1", "x+1", 0), ("(3,4),(1,2)", "(1,2),(3,4)", 1), ("4,6", "\\{4,6\\}", 1),
    ("-2x+1", "y=-2x+1", 1), ("\\text{(B)}", "\\text{B}", 1), ("x \\in (4,6)", "(4,6)", 1),
    ("75,75", "75^\\circ,75^\\circ", 1), (A_B, A_B.replace("2&", "\\frac{4}{2}&"), 1),
    # Nothing in another variable; lists and intervals in another spelling.
    ("x+1+0y", "x+1", 0), ("x+1+y-y", "x+1", 0), ("x+0x+1", "x+1", 0),
    ("2,-2", "\\pm 2", 1), ("\\pm 2", "-2, 2", 1), ("3+\\sqrt{2}, 3-\\sqrt{2}", "3 \\pm \\sqrt{2}", 1),
    ("2,-3", "\\pm 2", 0), ("2", "\\pm 2", 0), ("\\pm 2", "2", 0), ("\\pm 3", "2,-2", 0),
    ("1 and 2", "1,2", 1), ("1,2", "1 \\text{ or } 2", 1), ("x=1 \\text{ or } x=2", "1,2", 1),
    ("1 and 3", "1,2", 0), ("1 and 2", "(1,2)", 0), ("1 and 2", "1", 0),
    ("x>3", "(3,\\infty)", 1), ("x \\ge 3", "[3,\\infty)", 1), ("(-\\infty,3)", "x<3", 1), ("1 \\le x<3", "[1,3)", 1),
    ("x \\ge 3", "(3,\\infty)", 0), ("x>4", "(3,\\infty)", 0), ("1<x<3", "(1,3)", 0), ("(1,3)", "1<x<3", 1),
    ("x>3", "(3,4)", 0), ("5 and \\sqrt{16}", "5 and 4", 0), ("(0,4)", "0 and 4", 0), ("x=0 or x=1", "(0,1)", 0),
    ("(2,1) or 3", "(2,1)", 0), ("1, \\text{ and } 4", "4 and 1", 1), ("x=1, x=2", "1,2", 0),
    # An inequality that is not solved, a calculation with two signs or in a term, a set that is left to unite.
    ("2x>6", "(3,\\infty)", 0), ("(x-2)(x-3) \\le 0", "[2,3]", 0), ("\\sqrt{x-2} \\ge 0", "[2,\\infty)", 0),
    ("-4 \\le 2x<10", "[-2,5)", 0), ("2x+1>3x-7", "(-\\infty,8)", 0), ("2x+2>x+5", "x>3", 0),
    ("3<x", "(3,\\infty)", 1), ("5>x \\ge -2", "[-2,5)", 1), ("8>=x", "(-\\infty,8]", 1), ("3<x", "x>3", 1),
    ("x>\\frac32", "(\\frac32,\\infty)", 1), ("\\theta>e", "(e,\\infty)", 1),
    ("5/2 \\pm 1/2", "2,3", 0), ("3 \\pm 2", "5,1", 0), ("0 \\pm 2", "2,-2", 0), ("3 ± 2", "5,1", 0),
    ("3 \\mp 2", "5,1", 0), ("\\frac{5 \\pm 1}{2}", "2,3", 0), ("1 \\pm \\sqrt{2}", "1+\\sqrt2, 1-\\sqrt2", 1),
    ("x+2-1", "x+1", 0), ("x+1^{99}", "x+1", 0), ("3^2x", "9x", 0), ("x+1!", "x+1", 0), ("200\\% x", "2x", 0),
    ("\\{1,2\\} \\cup \\{3\\}", "\\{1,2,3\\}", 0), ("[1,2] \\cup [2,3]", "[1,3]", 0), ("\\{3,4\\}", "(3,4)", 0),
    ("75", "75^\\circ,75^\\circ", 0), ("\\{(1,2),(3,4)\\}", "(1,2),(3,4)", 1), ("\\pm 1, \\pm 2", "1,-1,2,-2", 1),
    ("x\\geq 2\\text{ cm}", "x\\ge 2", 1), ("a_{1}>2", "a_1>2", 1), ("x_{1}\\ge 2", "[2,\\infty)", 1),
    ("\\text{x}>2", "(2,\\infty)", 1), ("x>\\ln e^3", "x>3", 0), ("a>\\arctan 2", "(\\arctan 2,\\infty)", 1),
    ("x>\\sin 1", "(\\sin 1,\\infty)", 1), ("x>2\\cdot\\pi", "x>2\\pi", 1), ("\\text{not odd}", "\\text{odd}", 0),
    ("(600\\%,4)", "(6,4)", 0), ("x^2<4", "[-2,2]", 0), ("\\log x>3", "x>1000", 0), ("x<\\log_2 8", "x<3", 0),
    ("x2^3", "8x", 0), ("x\\cdot 2^3", "8x", 0), ("x 3!", "6x", 0), ("x\\frac{16}{2}", "8x", 0), ("(5-3)x", "2x", 0),
    ("\\binom42 x", "6x", 0), ("\\dbinom{n}{1}", "n", 0), ("x_2^3+1", "1+x_2^3", 1),
    ("\\frac{x^2}{2^2}+y^2=1", "\\frac{x^2}{4}+y^2=1", 1), ("[-1,0)\\cup(0,1]", "[-1,1]\\setminus\\{0\\}", 1),
]  # fmt: skip


def test_what_claims_more_than_one_answer_pays_nothing(algebra: Callable[..., Grade]):
    found = [(text, gold, algebra(text, gold).score) for text, gold, _ in CLAIMS]
    assert found == [(text, gold, float(score)) for text, gold, score in CLAIMS]


def test_percent_may_be_left_out_where_they_are_asked_for():
    assert math.judge("25", "25\\%", "What percent is it?") is True
    assert math.judge("25", "25\\%", "How likely is it?") is False
    assert math.judge("25\\%", "25\\%", "How likely is it?") is True


LONG = {
    "slashes": "/" * 9_999,
    "brackets": "(" * 5_000 + ")" * 4_999,
    "open fractions": "\\frac{" * 1_600,
    "roots of large primes": ",".join(f"\\sqrt{{{9_999_999_967 - 2 * step}}}" for step in range(500)),
    "open matrices": "\\begin{a}" * 1_100,
    "products": "1*" * 5_000,
    "ratios": "1:" * 5_000,
    "sums": "1+" * 4_999 + "1",
    "signs": "-" * 9_999,
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_answer_is_judged_in_few_steps(name: str):
    """Steps are counted, since time depends on the machine."""
    steps = 0

    def count(*_: Any) -> Any:
        nonlocal steps
        steps += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        math.judge(LONG[name], "x^2+3x+2")
    finally:
        sys.settrace(before)
    assert steps < 500_000
