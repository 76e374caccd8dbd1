import asyncio
import json
from itertools import islice
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from bough.cli import main
from bough.environments.base import Environment
from bough.environments.check import CheckReport, check, new_environment
from bough.environments.registry import find
from bough.errors import InputError


def checked(name: str) -> CheckReport:
    environment_class: type[Environment] = find(f"tests.environments.worlds:{name}")
    tasks = list(islice(environment_class.tasks(environment_class.Options()), 2))
    return asyncio.run(check(environment_class, f"tests.environments.worlds:{name}", tasks))


@pytest.mark.parametrize("name", ["Counting", "Plain"])
def test_a_good_environment_of_coroutines_or_plain_functions_has_no_problems(name: str):
    assert checked(name).problems == []


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


def test_an_agent_that_plays_by_itself_has_no_step_to_check(tmp_path: Path, capsys: Any):
    (tmp_path / "mine.py").write_text("def play(base_url): ...")
    assert main(["env", "check", f"agent:{tmp_path}/mine.py:play"]) == 2
    assert "it has no step to check" in capsys.readouterr().err


SMALL = [
    "model=tiny", "base.tasks=1", "after-sft.tasks=1", "demonstrations.tasks=2", "sft.max_steps=1",
    "defaults.sampling.max_new_tokens=4",
]  # fmt: skip


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    assert main(["env", "new", "corner-shop", "--json"]) == 0
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    return made


def test_the_new_environment_its_test_and_its_recipe_run(made: dict[str, Any], capsys: Any):
    assert made["files"] == ["corner_shop/corner_shop.py", "corner_shop/test_corner_shop.py", "corner_shop/recipe.yaml"]
    check, _, run = (command.split()[1:] for command in made["commands"])
    assert main([*check, "--tasks", "1"]) == 0, capsys.readouterr().out
    tests = {name: test for name, test in run_path(made["files"][1]).items() if name.startswith("test_")}
    assert len(tests) == 3
    for test in tests.values():
        test()
    assert main([*run, *SMALL, "--report-to", "none"]) == 0, capsys.readouterr().out
    results = json.loads(Path("runs/corner_shop/05-after-sft/results.json").read_text())
    assert results["models"] and Path("runs/corner_shop/04-sft/final").is_dir()


@pytest.mark.parametrize("name", ["class", "two words", "../up", "1st", "", "größe"])
def test_a_name_that_python_cannot_use_is_refused(tmp_path: Path, name: str):
    with pytest.raises(InputError, match="cannot be the name of an environment"):
        new_environment(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path):
    files, _ = new_environment("shop", tmp_path)
    assert {file.parent for file in files} == {tmp_path / "shop"}
    with pytest.raises(InputError, match="shop exists; choose another name"):
        new_environment("shop", tmp_path)
