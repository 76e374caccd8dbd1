import asyncio
from itertools import islice

import pytest

from bough.environments.base import Environment
from bough.environments.check import CheckReport, check
from bough.environments.registry import find


def checked(name: str) -> CheckReport:
    environment_class: type[Environment] = find(f"tests.environments.worlds:{name}")
    tasks = list(islice(environment_class.tasks(environment_class.Options()), 2))
    return asyncio.run(check(environment_class, f"tests.environments.worlds:{name}", tasks))


def test_a_good_environment_has_no_problems():
    assert checked("Counting").problems == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Forgetful", "the start differs in the content of message 0"),
        ("Fragile", "nonsense: step raised ValueError: invalid literal for int()"),
        ("Generous", "gave the reward 1 for task train-0-0; its declared range is 0 to 0.5"),
        ("Entangled", "two episodes at the same time: turn 1 is answered differently"),
    ],
)
def test_each_breach_is_found(name: str, problem: str):
    problems = checked(name).problems
    assert any(problem in found for found in problems), problems


def test_a_start_that_depends_on_the_process_is_found(monkeypatch: pytest.MonkeyPatch):
    environment_class = find("tests.environments.worlds:Counting")
    tasks = list(islice(environment_class.tasks(environment_class.Options()), 1))
    # The other process runs another class under the name it is given.
    report = asyncio.run(check(environment_class, "tests.environments.worlds:Forgetful", tasks))
    assert report.problems == ["another process: the start of task train-0-0 differs from the start in this process"]


def test_an_expert_that_loses_is_a_problem_with_its_task():
    assert checked("Losing").problems == [
        "task train-0-0: the expert does not solve the task: it fails after 1 turn\n  the same: task train-0-1"
    ]
    assert checked("Aimless").problems == [
        "task train-0-0: the expert does not solve the task: it has not finished after 6 turns; "
        "its last reply was invalid: No.\n  the same: task train-0-1"
    ]


def test_plain_functions_keep_the_contract_as_coroutines_do():
    assert checked("Plain").problems == []
