r"""Grades mathematics: the last `\boxed{}` of an answer against the one that is known to be right.

A reference that is a number (with roots, π, i or a unit, if it has them) asks for a number
in simplest form, compared here: what is left to calculate, a chain of equalities, a list
or another unit is wrong. Everything else (expressions, intervals, tuples, sets, matrices,
words) is compared by math-verify in the sandbox: it parses what a model wrote, may take
very long, and limits its time with signals, which only the main thread of a process can
use. Whatever an answer makes a grader do, the answer is graded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from math import gcd

from bough.sandbox.base import ProgramRunner
from bough.worlds.interpreter.grade import Grade
from bough.worlds.interpreter.number import Number, read_number
from bough.worlds.interpreter.units import read_unit, same_unit

TIMEOUT_S = 10.0
# A longer answer is wrong.
MAX_LENGTH = 10_000
# The first use builds grammars for a second or more; done once before, each grade takes milliseconds.
WARM_UP = "from math_verify import parse, verify; verify(parse('$1$'), parse('$(1, x) + 0$'))"
# The first way in which both sides can be read decides.
PROGRAM = """
import json
from math_verify import parse, verify
gold, answer = json.loads({texts!r})
def read(text):
    return parse("$" + text + "$", parsing_timeout=3) or parse("\\\\boxed{{" + text + "}}", parsing_timeout=3)
json.dumps(bool(verify(read(gold), read(answer), timeout_seconds=3)))
"""
# A box begins; a brace that is shown, or a line that ends; a brace that groups.
_BRACES = re.compile(r"(\\(?:boxed|fbox)\s*\{)|\\[{}]|\\\\(?!boxed|fbox)|([{}])")
_SPACES = re.compile(r"\\[,;:! ]|\\q?quad(?![A-Za-z])|~|\s+")
_VARIABLE = re.compile(r"\s*((?:[A-Za-z]|\\[a-z]+)(?:_(?:\w|\{\w+\}))?)\s*=\s*")
_SHORT_FRACTION = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_SHORT_ROOT = re.compile(r"(?:\\sqrt|√)\s*(\d)(?!\d)|√\s*\(?(\d+)\)?")
_CURRENCY = re.compile(r"([-+]?)\s*(?:\\?(\$)|(€|£))\s*(.*)", re.DOTALL)
_WRAPPER = re.compile(r"\\(?:text|mbox|mathrm|mathbf|textbf)\s*\{([^{}]*)\}")
# What makes a number out of numbers; only a reference that has it lets an answer have it.
_OPERATIONS = re.compile(
    r"\\times|\\cdot|\\div|\\ast|[*×·÷!^]|\\[bp]?mod|\bmod\b|\\binom|\\sum|\\prod|\\int|\\lim|\\[lr]floor|\\[lr]ceil"
    r"|\\gcd|\\max|\\min|\\(?:sin|cos|tan|cot|sec|csc|arc\w+|log|ln|exp|det)(?![a-z])|%"
)
# What an expression is still to be made of: the question of an exercise, and not its answer.
_UNEVALUATED = re.compile(
    r"\\(?:i*int|oint|sum|prod|lim)(?![a-z])|(?:\}\s*\{|/)\s*(?:d|\\partial|\\mathrm\s*\{\s*d\s*\})\s*[a-z](?![a-z])"
)
_SUM = re.compile(r"(?<![\w.}^\\])\d+(?:\.\d+)?\s*[-+]\s*\d+(?:\.\d+)?(?!\d|\.|\s*(?:\\(?:sqrt|pi|frac)|[i/√(]))")
_FRACTION = re.compile(r"\\frac\{(\d{1,300})\}\{(\d{1,300})\}")
# Spelling that leaves an expression the same, and what makes a text an expression.
_SPELLING = re.compile(r"[\s{}$]")
_COMBINES = re.compile(r"\w\s*[-+*/^(]|\)\s*[-+*/^(]|\\frac|\\cdot|\\times")
_TIMES = re.compile(r"\\cdot|\\times|\*")
# What stands between the parts of a point, an interval, a set, an inequality; a bracket after a factor is a product.
_BETWEEN = re.compile(
    r"\\(?:leq?|geq?|neq?|in|to|cup|cap)(?![A-Za-z])|[<>=≤≥,]|\\[{}]|[\[\]]|^\s*\(|\)\s*$|(?<=,)\s*\(|\)(?=\s*,)"
)
_SINGLE = re.compile(r"[-+]?\s*(?:[A-Za-z]|\\(?:infty|emptyset|pi))")
_EQUALS = re.compile(r"(?<![<>!:])=")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_LISTING = re.compile(r"\\(?:text|mbox)\s*\{\s*(?:or|and)\s*\}|\bor\b|\band\b|\\pm|;")
_WORDS = re.compile(r"\\(?:text|mbox|mathrm|operatorname|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+")


async def grade(
    answer: str,
    gold: str,
    runner: Callable[[], ProgramRunner] | None,
    *,
    question: str = "",
    timeout_s: float = TIMEOUT_S,
) -> Grade:
    """1 if the last box holds what `gold` holds, else 0. `runner` is called where algebra is needed.

    An expression may be written in another form than the reference, (x+1)^2 for x^2+2x+1:
    most problems ask for a value and not for a form, and a reference does not say which.
    An expression that is copied from the `question` is not an answer while something is left
    to work out, because "expand", "factor" and "simplify" are the problems that ask for a form.
    """
    boxed = last_boxed(answer)
    if boxed is None:
        return Grade(0.0, {"answer": None, "reason": "no \\boxed{} in the answer"})
    details = {"answer": boxed[:200]}
    if len(boxed) > MAX_LENGTH:
        return Grade(0.0, {**details, "reason": f"the answer is longer than {MAX_LENGTH:,} characters"})
    try:
        known = same(boxed, gold)
        reason = None if known is not None else _copied(boxed, gold, question) or _not_an_answer(boxed, gold)
    except Exception as error:  # an answer that breaks its grader is wrong, not lost
        return Grade(0.0, {**details, "reason": f"the grader raised {type(error).__name__}: {error}"})
    if known is not None:
        return Grade(float(known), details)
    if reason is not None:
        return Grade(0.0, {**details, "reason": reason})
    if runner is None:
        return Grade(0.0, {**details, "reason": "not a number"})
    texts = json.dumps([gold, boxed])
    result = await runner().run(PROGRAM.format(texts=texts), timeout_s=timeout_s)
    if result.value not in ("'true'", "'false'"):
        return Grade(0.0, {**details, "reason": result.killed or (result.error or "").rsplit("\n", 1)[-1]})
    return Grade(float(result.value == "'true'"), details)


def gold_answer(text: str) -> str:
    """The answer in a solution: what follows GSM8K's `####`, else the last box, else the text itself."""
    if "####" in text:
        return text.rsplit("####", 1)[1].strip()
    boxed = last_boxed(text)
    return text.strip() if boxed is None else boxed


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed{}` that is closed holds; None where there is none."""
    found, open_ = (-1, -1), list[int]()
    for token in _BRACES.finditer(text):
        if token[1]:
            open_.append(token.end())
        elif token[2] == "{":
            open_.append(-1)
        elif token[2] == "}" and open_:
            found = max(found, (open_.pop(), token.start()))
    return text[slice(*found)].strip() if found[0] >= 0 else None


def same(one: str, gold: str) -> bool | None:
    """Whether an answer is the reference, as far as equal texts and numbers tell; None if they do not."""
    (variable, one), (right_variable, gold) = _unnamed(_plain(one)), _unnamed(_plain(gold))
    if variable and right_variable and variable != right_variable:
        return False
    if re.sub(r"\s", "", one) == re.sub(r"\s", "", gold):
        return bool(one)
    wanted = _quantity(gold)
    if wanted is None:
        return None
    found = _quantity(one)
    if found is None:
        return False
    (number, unit), (right, right_unit) = found, wanted
    return number.simple and number.equals(right) and same_unit(unit, right_unit)


def _quantity(text: str) -> tuple[Number, str] | None:
    """A number and its unit; None where the text is something else."""
    currency = _CURRENCY.fullmatch(text)
    if currency:
        text = currency[1] + currency[4]
    found = read_number(text)
    if found is None:
        return None
    number, rest = found
    unit = read_unit(f" {currency[2] or currency[3]} {rest}" if currency else rest)
    return None if unit is None else (number, unit)


def _plain(text: str) -> str:
    """The same in one spelling."""
    text = text.strip().removeprefix("\\(").removesuffix("\\)").strip("$" if not text.startswith("\\$") else "")
    for old, new in (
        ("\\left", ""), ("\\right", ""), ("\\displaystyle", ""), ("{,}", ","), ("−", "-"), ("–", "-"),
        ("π", "\\pi"), ("°", "^\\circ"), ("\\degree", "^\\circ"), ("^{\\circ}", "^\\circ"),
        ("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"), ("\\cfrac", "\\frac"), ("\\!", ""), ("\\,", ""),
    ):  # fmt: skip
        text = text.replace(old, new)
    text = _SPACES.sub(" ", text).strip().rstrip(".").strip()
    text = _SHORT_ROOT.sub(r"\\sqrt{\1\2}", _SHORT_FRACTION.sub(r"\\frac{\1\2}{\3\4}", text))
    if whole := _WRAPPER.fullmatch(text):
        text = whole[1].strip()
    return text.removeprefix("\\approx").strip()


def _unnamed(text: str) -> tuple[str, str]:
    """`x = 5` is 5, and x."""
    named = _VARIABLE.match(text)
    return (named[1], text[named.end() :]) if named else ("", text)


def _not_an_answer(answer: str, gold: str) -> str | None:
    """Why an answer cannot be compared with a reference that is not a plain number; None if it can."""
    (_, answer), (_, gold) = _unnamed(_plain(answer)), _unnamed(_plain(gold))
    answer = _THOUSANDS.sub("", answer)
    if len(_EQUALS.findall(answer)) > len(_EQUALS.findall(gold)):
        return "an equation is not an answer here"
    if ("," in answer and "," not in gold) or (_LISTING.search(answer) and not _LISTING.search(gold)):
        return "a list is not an answer here"
    if _UNEVALUATED.search(answer) and not _UNEVALUATED.search(gold):
        return "there is something left to calculate"
    if re.search(r"[A-Za-z]", re.sub(r"[ei](?![A-Za-z])", "", _WORDS.sub("", gold))):
        return None  # an expression, or words
    calculates = bool(set(_OPERATIONS.findall(answer)) - set(_OPERATIONS.findall(gold)))
    calculates = calculates or (_SUM.search(answer) is not None and not _SUM.search(gold))
    if calculates or (_reducible(answer) and not _reducible(gold)):
        return "there is something left to calculate"
    return None


def _copied(answer: str, gold: str, question: str) -> str | None:
    """Why an answer is only a part of its question; None if it is not.

    A symbol or a word may stand in both. So may what leaves nothing to work out, such as a
    choice among numbers, and the reference itself with its terms in another order.
    """
    if _is_worked_out(answer):
        return None
    answer, gold, question = (_SPELLING.sub("", _plain(text)) for text in (answer, gold, question))
    if _same_symbols(answer, gold):
        return None
    if _COMBINES.search(answer) and answer in question and answer not in gold and gold not in question:
        return "it repeats the question"
    return None


def _same_symbols(answer: str, gold: str) -> bool:
    """Whether an answer has the symbols of the reference in another order; that both are equal is tested later."""
    signed = (text if text.startswith("-") else f"+{text}" for text in (_TIMES.sub("", answer), _TIMES.sub("", gold)))
    one, other = map(sorted, signed)
    return one == other


def _is_worked_out(answer: str) -> bool:
    """Whether an answer is made of numbers in simplest form and single symbols: `3/4`, `(1/2, 3)`, `x \\ge -1/2`."""
    parts = [part.strip() for part in _BETWEEN.split(_THOUSANDS.sub("", _plain(answer)))]
    return all(_is_simple(part) for part in parts if part)


def _is_simple(part: str) -> bool:
    if _SINGLE.fullmatch(part):
        return True
    found = read_number(part)
    return found is not None and not found[1].strip() and found[0].simple


def _reducible(text: str) -> bool:
    return any(gcd(int(top), int(bottom)) > 1 for top, bottom in _FRACTION.findall(text))
