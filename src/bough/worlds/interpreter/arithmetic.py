"""Arithmetic that is hard without an interpreter and easy with one: problems that need no file and no package."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

KINDS = ("expression", "power", "divisors", "series")


def problems(seed: int) -> Iterator[dict[str, Any]]:
    """An endless series of problems, each with its answer and the code that finds it."""
    rng = random.Random(seed)  # noqa: S311  no secret
    while True:
        kind = rng.choice(KINDS)
        problem, code = _PROBLEMS[kind](rng)
        answer = eval(code, {"__builtins__": {"sum": sum, "range": range, "pow": pow}})  # noqa: S307  ours
        yield {"problem": problem, "answer": str(answer), "code": f"print({code})"}


def _expression(rng: random.Random) -> tuple[str, str]:
    a, b, c, d = (rng.randint(100, 9999) for _ in range(4))
    return f"What is {a} × {b} − {c} × {d}?", f"{a} * {b} - {c} * {d}"


def _power(rng: random.Random) -> tuple[str, str]:
    base, exponent, modulus = rng.randint(3, 99), rng.randint(20, 200), rng.randint(100, 9999)
    problem = f"What is the remainder when {base} to the power of {exponent} is divided by {modulus}?"
    return problem, f"pow({base}, {exponent}, {modulus})"


def _divisors(rng: random.Random) -> tuple[str, str]:
    number = rng.randint(1000, 9999)
    problem = f"How many positive whole numbers divide {number} without a remainder?"
    return problem, f"sum({number} % n == 0 for n in range(1, {number} + 1))"


def _series(rng: random.Random) -> tuple[str, str]:
    last, step = rng.randint(200, 2000), rng.randint(3, 17)
    problem = f"What is the sum of the squares of all positive multiples of {step} that are at most {last}?"
    return problem, f"sum(n * n for n in range({step}, {last} + 1, {step}))"


_PROBLEMS = {"expression": _expression, "power": _power, "divisors": _divisors, "series": _series}
