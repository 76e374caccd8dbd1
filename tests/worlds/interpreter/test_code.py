import asyncio
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from bough.data.lines import lines
from bough.sandbox.pool import Sandbox
from bough.worlds.interpreter import Grade, code, problems, statements
from bough.worlds.interpreter.code import Exam, Exchange
from tests.shared_data import shared_data

TWO_SUM = Exam(
    statements.split("def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(0, 0) == 0\n"), "add"
)


@pytest.fixture(scope="module")
def grade() -> Iterator[Any]:
    with asyncio.Runner() as runner:

        async def made() -> tuple[Sandbox, Sandbox]:
            return Sandbox(code.LIMITS, workers=1), Sandbox(code.LIMITS, workers=1)

        rooms = runner.run(made())
        yield lambda answer, exam=TWO_SUM, **more: runner.run(code.grade(answer, exam, *rooms, **more))
        for room in rooms:
            runner.run(room.close())


def block(text: str) -> str:
    return f"Here it is:\n```python\n{text}\n```\nDone."


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (block("x = 1"), "x = 1\n"),
        ("```python\na = 1\n```\nbetter:\n```py\nb = 2\n```", "b = 2\n"),
        ("```\nc = 3\n```", "c = 3\n"),
        ("```python\nok = 1\n```\n```python\nnot python at all\n```", "ok = 1\n"),
        ("```python\nok = 1\n```\nIt prints:\n```\n6\n```", "ok = 1\n"),
        ("1. So:\n   ```python\n   if x:\n       y = 1\n   ```", "if x:\n    y = 1\n"),
        ("```json\n{}\n```", None),
        ("```python\n\n```", None),
        ("x = 1", None),
    ],
)
def test_the_last_block_that_is_python_is_the_program(text: str, found: str | None):
    assert code.last_block(text) == found


def test_the_score_is_the_fraction_of_tests_that_pass(grade: Any):
    assert grade(block("def add(a, b):\n    return a + b")) == Grade(1.0, {"parsable": True, "passed": 2, "tests": 2})
    half = grade(block("def add(a, b):\n    return 0"))
    assert half.score == 0.5 and not half.success
    assert half.details["reason"] == "assert candidate(1, 2) == 3  # AssertionError: "
    assert grade(block("def add(a, b):\n    return -1")).score == 0


def test_no_block_is_told_from_a_wrong_one(grade: Any):
    nothing = grade("I give up.")
    assert nothing.score == 0 and nothing.details["parsable"] is False
    crash = grade(block("1 / 0"))
    assert crash.score == 0 and crash.details == {"parsable": True, "reason": "ZeroDivisionError: division by zero"}
    missing = grade(block("def sub(a, b):\n    return a - b"))
    assert missing.score == 0 and "NameError" in missing.details["reason"]


def test_a_slow_test_costs_itself_alone(grade: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(code, "TEST_S", 2)
    slow = grade(block("def add(a, b):\n    while a:\n        pass\n    return a + b"))
    assert slow.score == 0.5 and "took too long" in slow.details["reason"]


def test_a_prelude_stands_before_the_program(grade: Any):
    prelude = "class Node:\n    def __init__(self, value):\n        self.value = value\n"
    tests = Exam(["assert candidate(3).value == 3"], "Solution().make", prelude)
    assert grade(block("class Solution:\n    def make(self, x):\n        return Node(x)"), tests).score == 1
    tests = Exam(statements.split(["expected = 6", "assert double(3) == expected", "assert double(0) == 1"]))
    assert grade(block("def double(x):\n    return 2 * x"), tests).score == 0.5


def test_published_solutions_pass_their_tests_and_empty_ones_do_not(grade: Any):
    for _, line in islice(lines(shared_data("code/leetcode-train.jsonl.xz")), 0, 400, 40):
        row = json.loads(line)
        problem = problems.problem(row)
        exam = Exam(problem["tests"], problem["entry"], problem["prelude"])
        assert grade(block(row["completion"]), exam).success, row["task_id"]
        name = problem["entry"].removeprefix("Solution().")
        assert not grade(block(f"class Solution:\n    def {name}(self, **_):\n        pass"), exam).success


def test_what_counts_as_a_test():
    helper = "def near(a, b):\n    assert abs(a - b) < 1"
    indirect = "def close(a):\n    near(a, 1)"
    text = "def check(candidate):\n    x = 1\n    assert candidate(x)\n\ncheck(add)"
    assert statements.split(text) == ["x = 1", "assert candidate(x)"]
    assert statements.split(["assert a", "b = 2\nassert b"]) == ["assert a", "b = 2", "assert b"]
    sources = ["assert a", "b = 2", "for i in x:\n    assert i", helper, indirect, "close(f(1))", "assert_equal(a, b)"]
    sources += ["assertion = 3", "text = 'assert x'", "class A:\n    def f(self):\n        assert 1"]
    counted = [source for source, counts in statements.marked(sources) if counts]
    assert counted == ["assert a", "for i in x:\n    assert i", "close(f(1))", "assert_equal(a, b)"]


def test_tests_that_never_call_the_program_pass_nothing(grade: Any):
    found = grade(block("def f(x): return 1"), Exam(["assert gcd(4, 2) == 2"], "f", "from math import *"))
    assert found.score == 0 and found.details["reason"] == "the tests never call the program"


def test_hostile_texts_do_not_hurt_the_host():
    for text in ("(" * 50_000, "-" * 200_000 + "1", "a." * 100_000 + "a", "[" * 9_000 + "]" * 9_000, "\0", "\ud800"):
        code.last_block(block(text))


CALL = '{"limit_s": 5.0}\n{"do": "call"}'


def test_a_program_that_has_ended_or_is_late_answers_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(code, "GRACE_S", 0.0)

    async def play() -> list[str]:
        ended, late = Exchange(), Exchange()
        waiting = asyncio.create_task(ended.from_tests(CALL))
        await asyncio.sleep(0)
        ended.end("it left")
        first = [await waiting, await ended.from_tests(CALL)]
        request = CALL.replace("5.0", "0.01")
        return [
            json.loads(text)["refused"]
            for text in [*first, await late.from_tests(request), await late.from_tests(request)]
        ]

    assert asyncio.run(play()) == [
        "it left",
        "it left",
        "the test took too long",
        "the test took too long, and the program was stopped",
    ]


def test_a_program_that_failed_or_said_nothing_is_told():
    async def said(text: str | None) -> str | None:
        box = Exchange()
        if text is not None:
            box.answers.put_nowait(text)
        return await box.ready(0.01)

    texts = ['{"ready": ' + "[" * 100_000, '{"ready": null, "more": "' + "x" * 100_000 + '"}']
    assert {asyncio.run(said(text)) for text in texts} == {"the program's answer is not readable"}
    texts = ['{"ready": "NameError: x"}', '{"ready": null}', "[]", "nonsense", None]
    assert [asyncio.run(said(text)) for text in texts] == [
        "NameError: x", None, "", "the program's answer is not readable", "killed: time",
    ]  # fmt: skip
