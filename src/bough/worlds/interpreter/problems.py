"""Problems: mathematics with answers and programs with tests from files, by the names that these give columns.

Without a file there is arithmetic, which needs no package either.
"""

from __future__ import annotations

import ast
import logging
import random
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bough.data.base import Row
from bough.data.lines import files, lines
from bough.data.reader import parse
from bough.errors import InputError, RowError
from bough.worlds.interpreter import code, reasoning, statements
from bough.worlds.interpreter.math import gold_answer

log = logging.getLogger(__name__)
STATEMENTS = ("problem", "question", "query", "prompt", "text", "instruction")
ANSWERS = ("answer", "solution")
TESTS = ("tests", "test", "test_list")
SETUPS = ("prelude", "test_setup_code", "test_imports", "setup")
EXPECTED = (
    "a mathematics problem has problem (or question) and answer, "
    "a coding problem prompt (or query) and tests (or test, test_list), and entry_point where the tests call candidate"
)
NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)


def read(source: Path) -> Iterator[dict[str, Any]]:
    """The problems of a file or folder. A bad row is an InputError with its place."""
    for path in files(source):
        number, unanswered = 0, []
        try:
            for number, content in lines(path):
                if isinstance(content, bytes) and not content.strip():
                    continue
                row = parse(content)
                # Some published files have a few rows whose answer is empty.
                empty = not any(row.get(name) not in (None, "") for name in (*ANSWERS, *TESTS))
                if empty and any(name in row for name in ANSWERS):
                    unanswered.append(number)
                else:
                    yield problem(row)
        except RowError as error:
            raise InputError(f"{path}:{max(1, number)}: {error}") from None
        if unanswered:
            count, first = len(unanswered), unanswered[0]
            log.warning("%s: %d rows have no answer and are left out, line %d first", path, count, first)


def problem(row: Row) -> dict[str, Any]:
    """One row as a problem."""
    statement = next((name for name in STATEMENTS if isinstance(row.get(name), str)), "")
    data: dict[str, Any] = {"kind": "code", "problem": row.get(statement)}
    tests = next((row[name] for name in TESTS if row.get(name)), None)
    if tests is None and "entry_point" not in row:
        if find_spec("math_verify") is None:
            raise InputError("grading mathematics needs the package math-verify; pip install 'bough[interpreter]'")
        answer = next((row[name] for name in ANSWERS if row.get(name) is not None), None)
        plain = isinstance(answer, str | int | float)
        data |= {"kind": "math", "answer": gold_answer(str(answer)) if plain else answer}
    else:
        entry = row.get("entry_point")
        # LeetCode's files say the problem in "query" and keep what stands before the solution in "prompt".
        setups = ("prompt",) if statement == "query" else SETUPS
        prelude = next((row[key] for key in setups if row.get(key)), None)
        if isinstance(prelude, list):
            prelude = "\n".join(map(str, prelude))
        if prelude is None:
            prelude = _given(row.get(statement) or "", entry)
        try:
            tests = statements.split(tests or [])
        except (*NOT_PYTHON, TypeError):
            tests = [tests]
        data |= {"tests": tests, "entry": entry, "prelude": prelude}
    if wrong := missing(data, data["kind"]):
        columns = ", ".join(map(str, row)) or "no columns"
        raise RowError("bad_problem", f"a {data['kind']} problem needs {wrong}. It has {columns}; {EXPECTED}")
    return data


def missing(data: dict[str, Any], kind: str) -> str | None:
    """What a problem has not, or not as it should be; None if nothing is missing."""
    if not isinstance(data.get("problem"), str):
        return "problem as text"
    if kind == "math":
        good = isinstance(data.get("answer"), str | int | float) and str(data["answer"])
        return None if good else "answer as text or a number"
    if kind == "reasoning":
        if not isinstance(data.get("generator"), str) or any(
            type(data.get(key)) is not int for key in ("seed", "index")
        ):
            return "generator as text, and seed and index as whole numbers"
        why = reasoning.NOT_GRADED.get(data["generator"])
        return f"another generator than {data['generator']}: {why}" if why else None
    tests, prelude, entry = data.get("tests"), data.get("prelude", ""), data.get("entry")
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
        return "tests as a list of Python statements"
    if not isinstance(prelude, str) or not isinstance(entry, str | None):
        return "prelude and entry_point as text"
    try:
        compile(prelude, "prelude", "exec")
        if not any(counts for _, counts in statements.marked(tests)):
            return "tests that assert something"
        _, unknown = statements.program_names(tests, entry, prelude, data["problem"])
    except NOT_PYTHON as error:
        return f"tests and a prelude that are Python ({error or type(error).__name__})"
    if entry is None and any("candidate(" in test for test in tests):
        return "entry_point, the name of what the tests call candidate"
    if unknown:
        return f"tests that import or define {', '.join(unknown)}, or a text that names what to write"
    return None


def _given(statement: str, entry: str | None) -> str:
    """What a problem in Python, such as HumanEval's, defines besides the function that is to be completed."""
    try:
        body = ast.parse(code.last_block(statement) or statement).body
    except NOT_PYTHON:
        return ""
    functions = [part for part in body if isinstance(part, ast.FunctionDef)]
    if not any(part.name == entry for part in functions):
        return ""
    stubs = [part for part in functions if all(isinstance(line, ast.Pass | ast.Expr) for line in part.body)]
    return "\n".join(ast.unparse(part) for part in body if part not in stubs and getattr(part, "name", "") != entry)


def arithmetic(seed: int) -> Iterator[dict[str, Any]]:
    """An endless series of problems that are hard without an interpreter, each with its answer and the code for it."""
    rng = random.Random(seed)  # noqa: S311  no secret
    while True:
        kind = rng.choice(("expression", "power", "divisors", "series"))
        if kind == "expression":
            a, b, c, d = (rng.randint(100, 9999) for _ in range(4))
            problem, program = f"What is {a} × {b} − {c} × {d}?", f"{a} * {b} - {c} * {d}"
        elif kind == "power":
            base, exponent, modulus = rng.randint(3, 99), rng.randint(20, 200), rng.randint(100, 9999)
            problem = f"What is the remainder when {base} to the power of {exponent} is divided by {modulus}?"
            program = f"pow({base}, {exponent}, {modulus})"
        elif kind == "divisors":
            number = rng.randint(1000, 9999)
            problem = f"How many positive whole numbers divide {number} without a remainder?"
            program = f"sum({number} % n == 0 for n in range(1, {number} + 1))"
        else:
            last, step = rng.randint(200, 2000), rng.randint(3, 17)
            problem = f"What is the sum of the squares of all positive multiples of {step} that are at most {last}?"
            program = f"sum(n * n for n in range({step}, {last} + 1, {step}))"
        answer = eval(program, {"__builtins__": {"sum": sum, "range": range, "pow": pow}})  # noqa: S307  ours
        yield {"problem": problem, "answer": str(answer), "code": f"print({program})"}
