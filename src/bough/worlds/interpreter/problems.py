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


def read(source: Path) -> Iterator[dict[str, Any]]:
    """The problems of a file or folder. A bad row is an InputError with its place."""
    for path in files(source):
        number, unanswered = 0, []
        try:
            for number, content in lines(path):
                if isinstance(content, bytes) and not content.strip():
                    continue
                row = parse(content)
                if _unanswered(row):
                    unanswered.append(number)
                else:
                    yield problem(row)
        except RowError as error:
            raise InputError(f"{path}:{max(1, number)}: {error}") from None
        if unanswered:
            log.warning(
                "%s: %d rows have no answer and are left out, line %d first", path, len(unanswered), unanswered[0]
            )


def problem(row: Row) -> dict[str, Any]:
    """One row as a problem."""
    statement = next((name for name in STATEMENTS if isinstance(row.get(name), str)), None)
    tests = next((name for name in TESTS if row.get(name)), None)
    answer = next((name for name in ANSWERS if row.get(name) is not None), None)
    if tests is None and "entry_point" in row:
        raise RowError("no_tests", f"the tests are missing; none of {', '.join(TESTS)} is a column. {_has(row)}")
    if statement is None:
        raise RowError(
            "no_problem", f"the problem is missing; none of {', '.join(STATEMENTS)} is a column. {_has(row)}"
        )
    if tests is not None:
        return _coding(row, statement, row[tests], tests)
    if answer is None:
        raise RowError("no_answer", f"neither an answer nor tests; {EXPECTED}. {_has(row)}")
    if not isinstance(row[answer], str | int | float):
        raise RowError("bad_answer", f'"{answer}" is {type(row[answer]).__name__}; it must be text or a number')
    if find_spec("math_verify") is None:
        raise InputError("grading mathematics needs the package math-verify; pip install 'bough[interpreter]'")
    gold = gold_answer(str(row[answer]))
    if not gold:
        raise RowError("no_answer", f'"{answer}" is empty')
    return {"kind": "math", "problem": row[statement], "answer": gold}


def missing(data: dict[str, Any], kind: str) -> str | None:
    """What a problem that is given as a task has not, or not as it should be; None if nothing is missing."""
    if not isinstance(data.get("problem"), str):
        return "problem as text"
    if kind == "math":
        return None if isinstance(data.get("answer"), str | int | float) else "answer as text or a number"
    if kind == "reasoning":
        good = isinstance(data.get("generator"), str) and all(type(data.get(key)) is int for key in ("seed", "index"))
        if good and data["generator"] in reasoning.NOT_GRADED:
            return f"another generator than {data['generator']}: {reasoning.NOT_GRADED[data['generator']]}"
        return None if good else "generator as text, and seed and index as whole numbers"
    tests, prelude, entry = data.get("tests"), data.get("prelude", ""), data.get("entry")
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
        return "tests as a list of Python statements"
    if not isinstance(prelude, str) or not isinstance(entry, str | None):
        return "prelude and entry as text"
    try:
        if not any(counts for _, counts in statements.marked(tests)):
            return "tests that assert something"
        _, unknown = statements.program_names(tests, entry, prelude, data["problem"])
        return f"tests that import or define {', '.join(unknown)}" if unknown else None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"tests and a prelude that are Python ({error})"


def _coding(row: Row, statement: str, tests: Any, name: str) -> dict[str, Any]:
    if not isinstance(tests, str) and not (isinstance(tests, list) and all(isinstance(test, str) for test in tests)):
        raise RowError("bad_tests", f'"{name}" must be Python text or a list of it')
    # LeetCode's files say the problem in "query" and keep what stands before the solution in "prompt".
    prelude = row.get("prompt") if statement == "query" else next((row[key] for key in SETUPS if row.get(key)), None)
    if isinstance(prelude, list) and all(isinstance(line, str) for line in prelude):
        prelude = "\n".join(prelude)
    if not isinstance(prelude, str | None):
        raise RowError("bad_tests", f"what comes before the tests is {type(prelude).__name__}; it must be Python text")
    entry = row.get("entry_point")
    if not isinstance(entry, str | None):
        raise RowError("bad_entry_point", f"entry_point is {type(entry).__name__}; it must be text")
    if prelude is None:
        prelude = _given(row[statement], entry)
    try:
        sources = statements.split(tests)
        compile(prelude, "prelude", "exec")
        _, unknown = statements.program_names(sources, entry, prelude, row[statement])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RowError("bad_tests", f'"{name}" is not Python: {error or type(error).__name__}') from None
    if not any(counts for _, counts in statements.marked(sources)):
        raise RowError("no_tests", f'"{name}" asserts nothing')
    if entry is None and any("candidate(" in source for source in sources):
        raise RowError("no_entry_point", f"the tests call candidate, but entry_point is missing. {_has(row)}")
    if unknown:
        raise RowError(
            "missing_names",
            f'"{name}" uses {", ".join(unknown)}, which nothing imports or defines and the problem does not ask for; '
            f"import it there or in {SETUPS[0]}, or name what the program has to define in the problem",
        )
    return {"kind": "code", "problem": row[statement], "tests": sources, "entry": entry, "prelude": prelude}


def _given(statement: str, entry: str | None) -> str:
    """What a problem in Python, such as HumanEval's, defines besides the function that is to be completed."""
    try:
        body = ast.parse(code.last_block(statement) or statement).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    if not any(isinstance(part, ast.FunctionDef) and part.name == entry for part in body):
        return ""
    kept = [part for part in body if not isinstance(part, ast.FunctionDef) or (part.name != entry and _works(part))]
    return "\n".join(map(ast.unparse, kept))


def _works(function: ast.FunctionDef) -> bool:
    """Whether a function has more than a docstring."""
    return not all(isinstance(part, ast.Pass | ast.Expr) for part in function.body)


def _unanswered(row: Row) -> bool:
    """Whether the column is there and the answer is not: some published files have a few such rows."""
    return any(name in row for name in ANSWERS) and not any(
        row.get(name) not in (None, "") for name in (*ANSWERS, *TESTS)
    )


def _has(row: Row) -> str:
    return f"It has {', '.join(map(str, row)) or 'no columns'}"


def arithmetic(seed: int) -> Iterator[dict[str, Any]]:
    """An endless series of problems that are hard without an interpreter, each with its answer and the code for it."""
    rng = random.Random(seed)  # noqa: S311  no secret
    while True:
        problem, program = rng.choice(ARITHMETIC)(rng)
        answer = eval(program, {"__builtins__": {"sum": sum, "range": range, "pow": pow}})  # noqa: S307  ours
        yield {"problem": problem, "answer": str(answer), "code": f"print({program})"}


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


ARITHMETIC = (_expression, _power, _divisors, _series)
