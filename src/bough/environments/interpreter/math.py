r"""Grades mathematics: the last `\boxed{}` of an answer against the one that is known to be right.

Equal texts and equal numbers need no computer algebra. The rest is math-verify's, which
runs in the sandbox: it parses what a model wrote, may take forever over it, and keeps its
own time by signals, which only the main thread of a process can have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from fractions import Fraction

from bough.environments.interpreter.grade import Grade
from bough.sandbox.base import Runner

TIMEOUT_S = 10.0
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
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:/\d+)?")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?")
_FRACTION = re.compile(r"([-+]?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_OPENING = re.compile(r"\\(?:boxed|fbox)\s*\{")


async def grade(answer: str, gold: str, runner: Callable[[], Runner] | None) -> Grade:
    """1 if the last box holds what `gold` holds, else 0. `runner` is called where algebra is needed."""
    boxed = last_boxed(answer)
    if boxed is None:
        return Grade(0.0, {"answer": None, "reason": "no \\boxed{} in the answer"})
    if (known := same(boxed, gold)) is not None:
        return Grade(float(known), {"answer": boxed})
    if runner is None:
        return Grade(0.0, {"answer": boxed, "reason": "not a number"})
    texts = json.dumps([gold, boxed[:10_000]])
    result = await runner().run(PROGRAM.format(texts=texts), timeout_s=TIMEOUT_S)
    if result.value not in ("'true'", "'false'"):
        return Grade(0.0, {"answer": boxed, "reason": result.killed or (result.error or "").rsplit("\n", 1)[-1]})
    return Grade(float(result.value == "'true'"), {"answer": boxed})


def gold_answer(text: str) -> str:
    """The answer in a solution: what follows GSM8K's `####`, else the last box, else the text itself."""
    if "####" in text:
        return text.rsplit("####", 1)[1].strip()
    boxed = last_boxed(text)
    return text.strip() if boxed is None else boxed


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed{}` that is closed holds; None where there is none."""
    for opening in reversed(list(_OPENING.finditer(text))):
        depth, escaped = 1, False
        for place in range(opening.end(), len(text)):
            character = text[place]
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character in "{}":
                depth += 1 if character == "{" else -1
                if depth == 0:
                    return text[opening.end() : place].strip()
    return None


def same(one: str, other: str) -> bool | None:
    """Whether two answers are equal, as far as plain text and plain numbers tell; None if they do not."""
    one, other = _plain(one), _plain(other)
    if one == other:
        return bool(one)
    numbers = _value(one), _value(other)
    if None in numbers:
        return None
    return numbers[0] == numbers[1]


def _plain(text: str) -> str:
    text = text.strip().strip("$").strip().rstrip(".")
    for left_out in ("\\$", "\\!", "\\,", "\\left", "\\right", " "):
        text = text.replace(left_out, "")
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    return _FRACTION.sub(r"\1\2/\3", text)


def _value(text: str) -> Fraction | None:
    if not _NUMBER.fullmatch(text) or len(text) > 1000:
        return None
    try:
        return Fraction(text) if "/" not in text else Fraction(text.split("/")[0]) / Fraction(text.split("/")[1])
    except ZeroDivisionError:
        return None
