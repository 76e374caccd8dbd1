import json
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from bough.cli import main
from bough.environments.check import new_environment
from bough.errors import InputError

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


def test_the_generated_test_can_fail(made: dict[str, Any]):
    environment = Path(made["files"][0])
    wrong = environment.read_text().replace("count=self.count)", "count=9)")
    environment.write_text(wrong)
    with pytest.raises(AssertionError):
        run_path(made["files"][1])["test_the_expert_wins"]()


@pytest.mark.parametrize("name", ["class", "two words", "../up", "1st", "", "größe"])
def test_a_name_that_python_cannot_use_is_refused(tmp_path: Path, name: str):
    with pytest.raises(InputError, match="cannot be the name of an environment"):
        new_environment(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path):
    assert new_environment("shop", tmp_path).folder == tmp_path / "shop"
    with pytest.raises(InputError, match="shop exists; choose another name"):
        new_environment("shop", tmp_path)
