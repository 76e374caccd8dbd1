"""reasoning-gym's generators as problems, and its scorers as graders.

A problem is named by its generator, seed and place; the grader makes it again, in a
sandbox of its own, since a scorer wants the very entry and not what is left of it after
JSON. Nine scorers evaluate the text of an answer as code. They are given an answer only
if it is a literal, or a formula, that does nothing: `EVALUATED` says which. Here answers are
parsed, never run.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bough.errors import BoughError, InputError, did_you_mean
from bough.sandbox import view
from bough.sandbox.base import ProgramRunner, SandboxLimits
from bough.worlds.interpreter import Grade, scoring
from bough.worlds.interpreter.math import last_boxed

TIMEOUT_S = 20.0
LIMITS = SandboxLimits(memory_mb=4096, timeout_s=60, cpu_s=60)
LONGEST = 20_000
WARM_UP = "import reasoning_gym"
BATCH = 200
# Some generators print; only problems go to the pipe, and at last why one could not be made.
MAKER = """
import json, os, sys
from itertools import count
pipe, sys.stdout = sys.stdout, open(os.devnull, "w")
import reasoning_gym
names, seed, size = json.loads(sys.argv[1])
try:
    for batch in count():
        # Entry i of seed s is generated from s + i: batches must not overlap.
        first, sets = (seed * 1_000_003 + batch) * size % (1 << 31), {}
        for name in names:
            sets[name] = reasoning_gym.create_dataset(name, seed=first, size=size)
        for index in range(size):
            for name, entries in sets.items():
                problem = {"problem": entries[index]["question"], "generator": name, "seed": first, "index": index}
                print(json.dumps(problem), file=pipe, flush=True)
except Exception as error:
    print(json.dumps({"generator": name, "failed": f"{type(error).__name__}: {error}"}), file=pipe, flush=True)
"""
# The result is marked with a secret of the host, which is not in the process while the answer is scored.
PROGRAM = """
{scoring}
import json
result = json.dumps(score(*json.loads({values!r})))
ask("secret") + result
"""
# Generators whose problems have no one answer that a scorer could ask for.
NOT_GRADED = {"propositional_logic": "a formula such as (P ∨ Q) follows from the premises of most of its problems"}
# Not possessive, (…)*+, which Python 3.11.2, Debian 12's, matches wrongly; tags end each attempt anyway.
_ANSWER = re.compile(r"<answer>([^<]*(?:<(?!/?answer>)[^<]*)*)</answer>")
# What a formula may call and contain: no attribute, and no name that a scorer defines.
FUNCTIONS = frozenset({
    "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "sinh", "cosh", "tanh", "asinh", "acosh",
    "atanh", "exp", "log", "ln", "sqrt", "erf", "Abs",
})  # fmt: skip
SYMBOLS = frozenset({"x", "y", "z", "X", "Y", "Z", "C", "E", "I", "pi"})
CALCULATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
LARGEST_EXPONENT = 1000
_CHARACTERS = re.compile(r"[\w +\-*/().,]*", re.ASCII)
_WORD = re.compile(r"[A-Z]+")
_SHAPE = ast.BinOp | ast.UnaryOp | ast.Load | ast.Add | ast.Sub | ast.Mult | ast.Div | ast.Pow | ast.USub | ast.UAdd


def problems(names: list[str], seed: int) -> Iterator[dict[str, Any]]:
    """An endless series of problems, the named generators in turn."""
    if refused := [f"{name}: {NOT_GRADED[name]}" for name in names if name in NOT_GRADED]:
        raise InputError("reasoning names generators that pay for the same answer to every problem:", refused)
    generators = _generators()
    if unknown := [name for name in names if name not in generators]:
        raise InputError(
            "reasoning names generators that reasoning-gym does not have:",
            [f"{name}{did_you_mean(name, sorted(generators))}" for name in unknown],
        )
    # Some generators hang on the order of sets: problems are made as the sandbox will make them again.
    environment = {**os.environ, "PYTHONHASHSEED": view.ENVIRONMENT["PYTHONHASHSEED"]}
    command = [sys.executable, "-P", "-c", MAKER, json.dumps([names, seed, BATCH])]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, encoding="utf-8") as maker:  # noqa: S603  ours
        assert maker.stdout is not None
        try:
            for line in maker.stdout:
                made = json.loads(line)
                if "failed" in made:
                    raise InputError(f"reasoning-gym makes no problem of {made['generator']}: {made['failed']}")
                yield made
        finally:
            maker.kill()
    raise BoughError(f"reasoning-gym stopped making problems (status {maker.returncode})")


async def grade(answer: str, problem: dict[str, Any], runner: ProgramRunner, *, timeout_s: float = TIMEOUT_S) -> Grade:
    """The grade by the generator's own scorer."""
    name, given = problem["generator"], final_answer(answer)[:LONGEST]
    details = {"answer": given[:200]}
    if not answer.strip():  # an empty text in its tags says that an equation has no solution
        return Grade(0.0, details | {"reason": "no answer"})
    if name in EVALUATED and not EVALUATED[name](given):
        return Grade(0.0, details | {"reason": "not an answer that this problem can have"})
    numbers = arithmetic(given) if name in ("countdown", "puzzle24") else None
    place = [name, problem["seed"], problem["index"], BATCH]
    values = json.dumps([*place, problem["problem"], given, numbers and numbers[1]])
    text = Path(scoring.__file__).read_text(encoding="utf-8")
    secret = secrets.token_hex(16)
    untold = [secret]

    async def tell(_: str) -> str:
        return untold.pop() if untold else ""

    program = PROGRAM.format(scoring=text, values=values)
    result = await runner.run(program, timeout_s=timeout_s, answer=tell)
    value = (result.value or "").strip("'")
    if value == f"{secret}null":
        raise InputError(
            f"reasoning-gym makes another problem of {name}, seed {problem['seed']}, index {problem['index']} "
            "than the task has; is it another version?"
        )
    if not value.startswith(secret):
        reason = result.killed or (result.error or "no score").rsplit("\n", 1)[-1]
        return Grade(0.0, details | {"reason": reason})
    score = float(value.removeprefix(secret))
    return Grade(min(1.0, max(0.0, score)) if math.isfinite(score) else 0.0, details)


def final_answer(text: str) -> str:
    """The text in the last answer tags, else in the last box, else all of it."""
    tagged = _ANSWER.findall(text)
    if tagged:
        return str(tagged[-1]).strip()
    boxed = last_boxed(text)
    return text.strip() if boxed is None else boxed


def _generators() -> set[str]:
    if find_spec("reasoning_gym") is None:
        raise InputError("reasoning needs the package reasoning-gym; pip install 'bough[interpreter]'")
    return set(import_module("reasoning_gym.factory").DATASETS)


def is_text_or_literal(text: str) -> bool:
    """Whether `text` is a Python literal, not a Python expression at all, or one word in capital letters."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return True
    except (ValueError, RecursionError, MemoryError):
        return False
    try:
        ast.literal_eval(tree)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return _WORD.fullmatch(text.strip()) is not None
    return True


def is_expression(text: str, functions: frozenset[str] = FUNCTIONS) -> bool:
    """Whether `text` contains only numbers, variables, operators and mathematical functions."""
    tree = _parsed(text)
    return tree is not None and _calculates(tree, functions)


def arithmetic(text: str) -> tuple[Fraction, list[int]] | None:
    """The value of a calculation with whole numbers and the numbers in it; None for any other text."""
    tree = _parsed(text)
    if tree is None:
        return None
    numbers: list[int] = []
    try:
        return _value(tree, numbers), numbers
    except (ValueError, ZeroDivisionError, RecursionError):
        return None


def _parsed(text: str) -> ast.expr | None:
    if not _CHARACTERS.fullmatch(text):
        return None
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _calculates(tree: ast.expr, functions: frozenset[str]) -> bool:
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    called = [node.func for node in calls]
    powers = [node.right for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)]
    return (
        all(isinstance(function, ast.Name) and function.id in functions for function in called)
        and not any(call.keywords for call in calls)
        and all(node.id in SYMBOLS for node in nodes if isinstance(node, ast.Name) and node not in called)
        and all(type(node.value) in (int, float) for node in nodes if isinstance(node, ast.Constant))
        and all(isinstance(node, _SHAPE | ast.Call | ast.Name | ast.Constant) for node in nodes)
        and all(map(_small, powers))
    )


def _small(exponent: ast.expr) -> bool:
    """Whether a power is cheap to compute: no power in the exponent and no large numbers."""
    nodes = list(ast.walk(exponent))
    return not any(isinstance(node, ast.Pow) for node in nodes) and all(
        abs(node.value) <= LARGEST_EXPONENT
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    )


def _value(tree: ast.expr, numbers: list[int]) -> Fraction:
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        numbers.append(tree.value)
        return Fraction(tree.value)
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return -_value(tree.operand, numbers)
    if isinstance(tree, ast.BinOp) and type(tree.op) in CALCULATIONS:
        return CALCULATIONS[type(tree.op)](_value(tree.left, numbers), _value(tree.right, numbers))
    raise ValueError("not a calculation with whole numbers")


# What the answers of scorers that evaluate them may be. A formula that is only written
# down, such as Integral(…) or expand(…), is the question and not its answer.
EVALUATED: dict[str, Callable[[str], bool]] = {
    "binary_matrix": is_text_or_literal,
    "n_queens": is_text_or_literal,
    "spiral_matrix": is_text_or_literal,
    "string_insertion": is_text_or_literal,
    "simple_integration": is_expression,
    "intermediate_integration": is_expression,
    "polynomial_multiplication": lambda text: is_expression(text, frozenset()),
    "countdown": lambda text: arithmetic(text) is not None,
    "puzzle24": lambda text: (arithmetic(text) or (None,))[0] == 24,
}
