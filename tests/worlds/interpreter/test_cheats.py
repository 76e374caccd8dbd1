"""No program gets a mark that it did not earn, and none gets its episode lost."""

import asyncio
import re
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from bough.sandbox.pool import Sandbox
from bough.worlds.interpreter import Grade, code, reasoning, statements
from bough.worlds.interpreter.code import Exam
from tests.worlds.interpreter.cheats import ANSWERS, HONEST, OTHERS, PROGRAMS

CHECK = "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(10) == 20\n"
DOUBLE = Exam(statements.split(CHECK), "f")
Grader = Callable[..., Grade]


@pytest.fixture(scope="module")
def grade() -> Iterator[Grader]:
    with asyncio.Runner() as runner:

        async def made() -> tuple[Sandbox, Sandbox]:
            return Sandbox(code.LIMITS, workers=1), Sandbox(code.LIMITS, workers=1)

        rooms = runner.run(made())
        yield lambda text, exam=DOUBLE: runner.run(code.grade(f"```python\n{text}\n```", exam, *rooms))
        for room in rooms:
            runner.run(room.close())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "TEST_S", 0.5)
    monkeypatch.setattr(code, "RUN_S", 2.0)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_no_cheat_passes_a_test(grade: Grader, program: str):
    found = grade(program)
    assert found.score == 0, found
    assert found.details.get("reason")


@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_no_cheat_passes_a_test_of_another_form(grade: Grader, case: tuple[str, ...]):
    test, program, *prelude = case
    exam = Exam(
        statements.split(test), "f", *prelude, problem="Write the function f and the classes Thing and Solution."
    )
    assert sum(counts for _, counts in statements.marked(exam.sources)) == 1
    assert grade(program, exam).score == 0


@pytest.mark.parametrize("case", HONEST.values(), ids=HONEST)
def test_honest_programs_get_what_they_earn(
    grade: Grader, case: tuple[list[str] | str, str | None, str, str, float], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(code, "TEST_S", 20.0)
    monkeypatch.setattr(code, "RUN_S", 60.0)
    tests, entry, prelude, program, score = case
    names = re.findall(r"^(?:def |class )?(\w+)(?: =|[(:])", program, re.MULTILINE)
    found = grade(program, Exam(statements.split(tests), entry, prelude, f"Write {' and '.join(names)}."))
    assert found.score == score, found


@pytest.fixture(scope="module")
def scored() -> Iterator[Grader]:
    pytest.importorskip("reasoning_gym")
    names = sorted({name for name, _ in ANSWERS.values()})
    problems = {problem["generator"]: problem for problem in islice(reasoning.problems(names, 1), len(names))}
    with asyncio.Runner() as runner:

        async def made() -> Sandbox:
            return Sandbox(reasoning.LIMITS, workers=1, warm_up=reasoning.WARM_UP)

        sandbox = runner.run(made())
        yield lambda name, text: runner.run(reasoning.grade(f"<answer>{text}</answer>", problems[name], sandbox))
        runner.run(sandbox.close())


@pytest.mark.parametrize("case", ANSWERS.values(), ids=ANSWERS)
def test_no_answer_makes_its_scorer_say_more_than_it_is_worth(scored: Grader, case: tuple[str, str]):
    assert scored(*case).score == 0
