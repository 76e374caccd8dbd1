r"""Grades mathematics: the last `\boxed{}` of an answer against the one that is known to be right.

A reference that is a number (with roots, π, i or a unit, if it has them) asks for a number
in simplest form, compared here: what is left to calculate, a chain of equalities, a list
or another unit is wrong. Everything else (expressions, intervals, tuples, sets, matrices,
words) is compared by math-verify in the sandbox: it parses what a model wrote, may take
very long, and limits its time with signals, which only the main thread of a process can
use. Whatever an answer makes a grader do, the answer is graded.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from itertools import accumulate, pairwise
from math import gcd

from bough.sandbox.pool import Sandbox
from bough.worlds.interpreter import Grade
from bough.worlds.interpreter.number import Number, read_number, read_unit

TIMEOUT_S = 10.0
# A fraction has several spellings of different lengths.
FRACTIONS = ("\\frac", "/")
LEFT = "there is something left to calculate"
# A longer answer is wrong.
MAX_LENGTH = 10_000
# So is one with so many more parts than the reference.
MAX_PARTS = 100
# The first use builds grammars for a second or more; done once before, each grade takes milliseconds.
WARM_UP = "from math_verify import parse, verify; verify(parse('$1$'), parse('$(1, x) + 0$'))"
# The first way in which both sides can be read decides. An inequality is compared with an interval if it comes first.
PROGRAM = """
import json
from math_verify import parse, verify
def read(text):
    return parse("$" + text + "$", parsing_timeout=3) or parse("\\\\boxed{{" + text + "}}", parsing_timeout=3)
json.dumps(bool(verify(*map(read, json.loads({texts!r})), timeout_seconds=3)))
"""
# A box begins; a brace that is shown, or a line that ends; a brace that groups.
_BRACES = re.compile(r"(\\(?:boxed|fbox)\s*\{)|\\[{}]|\\\\(?!boxed|fbox)|([{}])")
_SPACES = re.compile(r"(?:\\[,;:! ]|\\q?quad(?![A-Za-z])|~|\s)+")
_VARIABLE = re.compile(r"\s*((?:[A-Za-z]|\\[a-z]+)(?:_(?:\w|\{\w+\}))?)\s*=\s*")
_SHORT_FRACTION = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_SHORT_ROOT = re.compile(r"(?:\\sqrt|√)\s*(\d)(?!\d)|√\s*\(?(\d+)\)?")
_CURRENCY = re.compile(r"([-+]?)\s*(?:\\?(\$)|(€|£))\s*(.*)", re.DOTALL)
_WRAPPER = re.compile(r"\\(?:text|mbox|mathrm|mathbf|textbf)\s*\{([^{}]*)\}")
# What makes a number out of numbers; only a reference that has it lets an answer have it.
_OPERATIONS = re.compile(
    r"\\?\||\\[lr]?vert|\\times|\\cdot|\\div|\\ast|[*×·÷!^]|\\[bp]?mod|\bmod\b|\\binom|\\sum|\\prod|\\int|\\lim|\\[lr]floor|\\[lr]ceil"
    r"|\\gcd|\\max|\\min|\\(?:sin|cos|tan|cot|sec|csc|arc\w+|log|ln|exp|det)(?![a-z])|%"
)
# What an expression is still to be made of: the question of an exercise, and not its answer.
_UNEVALUATED = re.compile(
    r"\\(?:i*int|oint|sum|prod|lim)(?![a-z])|(?:\}\s*\{|/)\s*(?:d|\\partial|\\mathrm\s*\{\s*d\s*\})\s*[a-z](?![a-z])"
)
_SUM = re.compile(r"(?<![\w.}^\\])\d+(?:\.\d+)?\s*[-+]\s*\d+(?:\.\d+)?(?!\d|\.|\s*(?:\\(?:sqrt|pi|frac)|[i/√(]))")
_FRACTION = re.compile(r"\\frac\{(\d{1,300})\}\{(\d{1,300})\}")
# A product of numbers, a sum of them in brackets or an exponent, a binomial, a power or factorial after a letter.
_NUMBERS_LEFT = re.compile(
    r"\d\s*(?:\\cdot|\\times|[*×·])\s*\d+(?!\d|\s*\^)|(?:\(|\^\{)\s*\d+\s*[-+]\s*\d+\s*[)}]|\\binom\s*(?:\{\s*)?\d"
    r"|\\binom\s*\{\w+\}\s*\{[01]\}|(?<![\\A-Za-z])[A-Za-z]\s*(?:(?:\\cdot|\\times|[*×·])\s*)?\d+\s*(?:!|\^\s*(?:\d|\{\s*\d+\s*\}))"
)
_POWER = re.compile(r"\s*(?:!|\\?%|\^\s*(?:\d|\{\s*\d+\s*\}))")
_RATIO = re.compile(r"(?<![\d:])\s*(\d{1,300})\s*:\s*(\d{1,300})\s*(?![\d:])")
_MATRIX = re.compile(r"\\begin\s*\{\w+\}.*?\\end\s*\{\w+\}", re.DOTALL)
_CELLS = re.compile(r"\\(?:begin|end)\s*\{\w+\}|\\\\|&")
# The forms that a question can ask for, and what an expanded and what a factored expression do not have.
_EXPAND = re.compile(r"\b(?:expand|multiply|distribut|find the product)", re.IGNORECASE)
_FACTOR = re.compile(r"\bfactor(?:ize|ise)?\b(?! of)", re.IGNORECASE)
_SIMPLIFY = re.compile(r"\b(?:simplif|combine|expand|multiply|add|subtract|compute)", re.IGNORECASE)
_ATOM = re.compile(r"\\[A-Za-z]+|[A-Za-z]|\d+(?:\.\d+)?")
_LETTERS_BELOW = re.compile(
    r"(?:\\frac\{[^{}]{0,200}(?:\{[^{}]{0,200}\}[^{}]{0,200}){0,9}\}\{[^{}]{0,200}|/\s*\(?[^()]{0,200})(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])"
)
# What can be added to a copy without a change: a factor 1, a term 0, brackets.
_NEUTRAL = re.compile(r"(?<![\d.}^])1(?=[A-Za-z(\\])|[-+]0(?![\d.])|[()\[\]]|\\left|\\right")
# The formulas of a question: between its signs for them, else words of symbols.
_FORMULA = re.compile(r"\$([^$]+)\$|\\[(\[](.+?)\\[)\]]|(?:^|(?<=\s))([^\s$]*[-+*/^(=][^\s$]*)", re.DOTALL)
# Spelling that leaves an expression the same, and what makes a text an expression.
_SPELLING = re.compile(r"[\s{}$]")
_COMBINES = re.compile(r"\w\s*[-+*/^(]|\)\s*[-+*/^(]|\\frac|\\cdot|\\times")
_TIMES = re.compile(r"\\cdot|\\times|\*")
# What stands between the parts of a point, an interval, a set, an inequality; a bracket after a factor is a product.
_BETWEEN = re.compile(
    r"\\(?:leq?|geq?|neq?|in|to|cup|cap)(?![A-Za-z])|[<>=≤≥,]|\\[{}]|[\[\]]|^\s*\(|\)\s*$|(?<=,)\s*\(|\)(?=\s*,)"
)
_RELATION = re.compile(r"\\(?:leq?|geq?|neq?|in|to|cup|cap|begin)(?![A-Za-z])|[<>=≤≥,:]|\\[{}]")
_SINGLE = re.compile(r"[-+]?\s*(?:[A-Za-z]|\\(?:infty|emptyset|pi))")
_EQUALS = re.compile(
    r"(?<![<>!:])=|[≈≡≅≃∼⇒→⟹]|\\(?:equiv|approx|sim|iff|implies|(?:Long)?[Ll]eftrightarrow|(?:Long)?[Rr]ightarrow)(?![a-z])"
)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_LISTING = re.compile(r",?\s*(?:\\(?:text|mbox)\s*\{\s*(?:or|and)\s*\}|\bor\b|\band\b|;)|\\pm")
_BOTH_SIGNS = re.compile(r"\\pm|\\mp")
_UNION = re.compile(r"\\c[au]p(?![a-z])")
_SETS = re.compile(rf"{_UNION.pattern}|\\setminus|\\backslash")
_BRACKETED = re.compile(r"[(\[][^()\[\]]*[)\]]")
_PERCENT = re.compile(r"percent|%", re.IGNORECASE)
_INTERVAL = re.compile(r"[(\[][^,]*,[^,]*[)\]]")
_INEQUALITY = re.compile(r"[<>≤≥]|\\[lg]eq?(?![A-Za-z])")
_UNKNOWN = re.compile(
    r"(?<![\\A-Za-z])(?:[A-Za-df-z]|\\(?!infty|pi|frac|sqrt|log|ln|sin|cos|tan|arc|circ|cdot|times)[a-z]+)"
    r"(?:_(?:\w|\{\w+\}))?"
)
# A term that is nothing, and a letter that is a variable or a constant of its own.
_NOTHING = re.compile(r"(?<![\d.,])0(?:\.0*)?\s*(?:\\cdot|\*)?\s*[A-Za-z]")
_LETTER = re.compile(r"[a-df-hj-z]")
_WORDS = re.compile(r"\\(?:text|mbox|mathrm|operatorname|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+")


async def grade(
    answer: str,
    gold: str,
    runner: Callable[[], Sandbox] | None,
    *,
    question: str = "",
    timeout_s: float = TIMEOUT_S,
) -> Grade:
    """1 if the last box holds what `gold` holds, else 0. `runner` is called where algebra is needed.

    An expression may be written in another form than the reference, (x+1)^2 for x^2+2x+1:
    most problems ask for a value and not for a form, and a reference does not say which.
    Where the `question` says "expand", "factor" or "simplify" it asks for a form, and one that
    is copied from it, in any order, is not an answer while something is left to work out. The
    numbers in every part of an answer are in simplest form, as those of the reference are.
    """
    boxed = last_boxed(answer)
    if boxed is None:
        return Grade(0.0, {"answer": None, "reason": "no \\boxed{} in the answer"})
    details = {"answer": boxed[:200]}
    if len(boxed) > MAX_LENGTH:
        return Grade(0.0, {**details, "reason": f"the answer is longer than {MAX_LENGTH:,} characters"})
    try:  # other episodes share the event loop
        judged = await asyncio.to_thread(judge, boxed, gold, question)
    except Exception as error:  # an answer that breaks its grader is wrong, not lost
        return Grade(0.0, {**details, "reason": f"the grader raised {type(error).__name__}: {error}"})
    if isinstance(judged, bool):
        return Grade(float(judged), details)
    if isinstance(judged, str):
        return Grade(0.0, {**details, "reason": judged})
    if runner is None:
        return Grade(0.0, {**details, "reason": "not a number"})
    texts = json.dumps(judged)
    result = await runner().run(PROGRAM.format(texts=texts), timeout_s=timeout_s)
    if result.value not in ("'true'", "'false'"):
        return Grade(0.0, {**details, "reason": result.killed or (result.error or "").rsplit("\n", 1)[-1]})
    return Grade(float(result.value == "'true'"), details)


def judge(answer: str, gold: str, question: str = "") -> bool | str | tuple[str, str]:
    """Whether an answer is right, or why it is wrong; or the two texts for algebra to compare."""
    known = same(answer, gold, question)
    if known is not None:
        return known
    why = _copied(answer, gold, question) or _not_an_answer(answer, gold)
    if why is None and not _same_symbols(*(_SPELLING.sub("", _plain(text)) for text in (answer, gold))):
        why = _in_another_form(answer, gold, question)
    if why is not None:
        return why
    # A reference such as (1,3) may be a point, and is no answer to 1 < x < 3.
    interval = _INTERVAL.fullmatch(_plain(gold)) and re.search(r"\\infty|[\[\]]", gold)
    if _INEQUALITY.search(answer) and (interval or _is_solved(gold)):
        calculates = _OPERATIONS.search(_TIMES.sub("", _plain(answer)).replace("^", ""))
        if not _is_solved(answer) or (calculates and not _OPERATIONS.search(gold)):
            return LEFT
    return (answer, gold) if interval and _INEQUALITY.search(answer) else (gold, answer)


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


def same(one: str, gold: str, question: str = "") -> bool | None:
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
    if right_unit == "%" != unit and question and not _PERCENT.search(question):
        return False  # a hundred times too much, unless percent are asked for
    # An answer may leave the unit out, or name one that the reference leaves to its question. A base is no such unit.
    fits = unit in ("", right_unit) or (not right_unit and not unit.startswith("base "))
    return number.simple and number.parts == right.parts and fits


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
        ("\\left", ""), ("\\right", ""), ("\\displaystyle", ""), ("{,}", ","), ("−", "-"), ("–", "-"), ("±", "\\pm"),
        ("π", "\\pi"), ("°", "^\\circ"), ("\\degree", "^\\circ"), ("^{\\circ}", "^\\circ"),
        ("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"), ("\\cfrac", "\\frac"), ("\\!", ""), ("\\,", ""),
        ("\\dbinom", "\\binom"), ("\\tbinom", "\\binom"),
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
    answer, gold = _THOUSANDS.sub("", _plain(answer)), _unnamed(_plain(gold))[1]
    listed = _is_list(gold)
    interval = _INTERVAL.fullmatch(answer) and _INEQUALITY.search(gold)
    if ("," in answer and "," not in gold and not interval and not (listed and _is_list(answer))) or (
        _LISTING.search(answer) and not listed
    ):
        return "a list is not an answer here"
    if listed and "," not in answer and not _LISTING.search(answer):
        return "it is one answer of several"
    if _BRACKETED.fullmatch(gold) and answer.startswith("\\{"):
        return "a set is not an answer here"
    unites = gold.startswith(("(", "[", "\\{")) and _UNION.search(answer) and not _SETS.search(gold)
    if unites or (_calculates(_BOTH_SIGNS.sub("+", answer)) and not _calculates(_BOTH_SIGNS.sub("+", gold))):
        return LEFT
    named = [_unnamed(part) for part in _LISTING.split(answer)]
    one_name = len({name for name, _ in named}) == 1 and named[0][0]  # x = 1 or x = 2
    answer = ",".join(value for _, value in named) if one_name else _unnamed(_LISTING.sub(",", answer))[1]
    gold = _LISTING.sub(",", gold)
    if len(_parts(answer)) > len(_parts(gold)) + MAX_PARTS:
        return "it has too many parts"
    if len(_EQUALS.findall(answer)) > len(_EQUALS.findall(gold)):
        return "an equation is not an answer here"
    if any(pattern.search(answer) and not pattern.search(gold) for pattern in (_UNEVALUATED, _NOTHING)):
        return LEFT
    bound = _RELATION.search(gold) or _UNEVALUATED.search(gold)
    if not bound and set() < _variables(gold) < _variables(answer):
        return "it has a variable that the reference does not have"
    if _combines_matrices(answer, gold) or (_calculates(answer) and not _calculates(gold)):
        return LEFT
    if _reducible(answer) and not _reducible(gold):
        return LEFT
    if ":" not in gold and _rounds(answer, gold):
        return "a number in it is not exact"
    if re.search(r"[A-Za-z]", re.sub(r"[ei](?![A-Za-z])", "", _WORDS.sub("", gold))):
        return None  # an expression, or words
    calculates = bool(set(_OPERATIONS.findall(answer)) - set(_OPERATIONS.findall(gold)))
    calculates = calculates or ("\\sqrt[" in answer and "\\sqrt[" not in gold and "^" not in gold)
    exempt = any(sign in answer + gold for sign in FRACTIONS)
    calculates = calculates or ("^" in gold and not exempt and _longer(answer, gold))
    calculates = calculates or (_SUM.search(answer) is not None and not _SUM.search(gold))
    return LEFT if calculates else None


def _is_list(text: str) -> bool:
    return bool(_LISTING.search(text)) or "," in _BRACKETED.sub("", _THOUSANDS.sub("", text))


def _is_solved(inequality: str) -> bool:
    """Whether a variable stands alone on one side, and none on another."""
    text = _WRAPPER.sub(lambda found: found[1] if len(found[1].strip()) == 1 else "", _plain(inequality))
    sides = [side.removeprefix("=").strip() for side in _INEQUALITY.split(text)]
    return [_UNKNOWN.fullmatch(side) is not None for side in sides if _UNKNOWN.search(side)] == [True]


def _variables(text: str) -> set[str]:
    return set(_LETTER.findall(_WORDS.sub("", text).lower()))


def _calculates(text: str) -> bool:
    """Whether a number in an expression, or in a part of a point, a set or a matrix, is not in simplest form."""
    if _NUMBERS_LEFT.search(text):
        return True
    for part in _parts(text):
        whole = read_number(part)
        if whole is not None and not whole[1].strip():
            first = [whole]
        else:
            terms = _terms(part)
            if len(terms) > MAX_PARTS:
                return True
            first = [number for number in map(read_number, terms) if number is not None]
            kinds = [kind for number, rest in first if not rest.strip() for kind in number.parts]
            if len(kinds) > len(set(kinds)) or any(_POWER.match(rest) for _, rest in first):
                return True
        if not all(number.simple for number, _ in first):
            return True
    return False


def _rounds(answer: str, gold: str) -> bool:
    """Whether a part of an answer is a decimal number that the reference does not have."""
    found = [read_number(part) for part in _parts(answer) if "." in part]
    decimals = [number[0] for number in found if number is not None and not number[1].strip()]
    known = [number[0].parts for number in map(read_number, _parts(gold) if decimals else ()) if number is not None]
    return any(number.parts not in known for number in decimals)


def _parts(text: str) -> list[str]:
    """The numbers or expressions of a point, an interval, a set, an inequality or a matrix."""
    return [part for piece in _BETWEEN.split(text) for part in _CELLS.split(piece)]


def _combines_matrices(answer: str, gold: str) -> bool:
    """Whether there is a sum or a product of matrices. A fraction in lowest terms may stand before one."""
    if not _MATRIX.search(gold):
        return False
    outside, expected = (re.sub(r"[\s{}$\[\]()]", "", _MATRIX.sub("", text)) for text in (answer, gold))
    if len(_MATRIX.findall(answer)) != len(_MATRIX.findall(gold)):
        return True
    if outside == expected:
        return False
    factor = re.fullmatch(r"-?(?:\\frac1|1/)(\d{1,9})", outside)
    cells = re.findall(r"\d{1,300}", _MATRIX.findall(answer)[0])
    return factor is None or gcd(int(factor[1]), *map(int, cells)) > 1


def _in_another_form(answer: str, gold: str, question: str) -> str | None:
    """Why an expression is not in the form that the question asks for, and that the reference has; None if it is.

    An expanded expression has no brackets, a factored one is not a sum, and a simplified one
    without brackets and fractions is not longer than the reference.
    """
    (_, answer), (_, gold) = _unnamed(_plain(answer)), _unnamed(_plain(gold))
    if not re.search(r"[A-Za-z]", _WORDS.sub("", gold)) or _RELATION.search(gold):
        return None
    if _EXPAND.search(question) and "(" in answer and "(" not in gold:
        return "it is not expanded"
    if _FACTOR.search(question) and len(_terms(answer)) > 1 and len(_terms(gold)) == 1:
        return "it is not factored"
    if _SIMPLIFY.search(question) and "(" not in gold:
        if _LETTERS_BELOW.search(answer) and not _LETTERS_BELOW.search(gold):
            return LEFT
        # A product may be as simple as a sum.
        exempt = any(sign in answer + gold for sign in FRACTIONS) or ("(" in answer and len(_terms(answer)) == 1)
        if not exempt and _longer(answer, gold):
            return LEFT
    return None


def _longer(answer: str, gold: str) -> bool:
    return len(_ATOM.findall(answer)) > len(_ATOM.findall(gold))


def _terms(text: str) -> list[str]:
    """What is added, or subtracted, outside of all brackets; brackets around everything do not count."""
    text = text.replace(" ", "")
    depths = list(accumulate((character in "({[") - (character in ")}]") for character in text))
    outer = len(text) - len(text.lstrip("("))
    around = max(0, min([outer, *depths[outer : len(text) - outer]]))
    text, depths = text[around : len(text) - around], depths[around : len(text) - around]
    signs = [
        place
        for place, character in enumerate(text)
        if place and character in "+-" and depths[place] <= around and text[place - 1] not in "^_"
    ]
    return [text[start:end] for start, end in pairwise([0, *signs, len(text)])]


def _copied(answer: str, gold: str, question: str) -> str | None:
    """Why an answer is only a part of its question; None if it is not.

    A symbol or a word may stand in both. So may what leaves nothing to work out, such as a
    choice among numbers, and the reference itself with its terms in another order.
    """
    parts = [part.strip() for part in _BETWEEN.split(_THOUSANDS.sub("", _plain(answer)))]
    numbers = (read_number(part) for part in parts if part and not _SINGLE.fullmatch(part))  # lazy: it may take long
    if all(found is not None and not found[1].strip() and found[0].simple for found in numbers):
        return None  # 3/4, (1/2, 3), x \ge -1/2
    formulas = [_SPELLING.sub("", _plain(part)) for found in _FORMULA.findall(question) for part in found if part]
    answer, gold, question = (_SPELLING.sub("", _plain(text)) for text in (answer, gold, question))
    if _same_symbols(answer, gold):
        return None
    if not _COMBINES.search(answer) or answer in gold or gold in question:
        return None
    bare = _NEUTRAL.sub("", answer)
    if answer in question or any(_same_symbols(bare, _NEUTRAL.sub("", part)) for part in formulas):
        return "it repeats the question"
    return None


def _same_symbols(answer: str, gold: str) -> bool:
    """Whether an answer has the symbols of the reference in another order; that both are equal is tested later."""
    signed = (text if text.startswith("-") else f"+{text}" for text in (_TIMES.sub("", answer), _TIMES.sub("", gold)))
    one, other = map(sorted, signed)
    return one == other


def _reducible(text: str) -> bool:
    pairs = _FRACTION.findall(text) + _RATIO.findall(text)
    return any(gcd(int(top), int(bottom)) > 1 for top, bottom in pairs)
