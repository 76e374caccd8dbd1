from pathlib import Path
from typing import Any

import pytest

from bough.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "guess_number.py"


def test_every_world_is_listed(capsys: Any):
    assert main(["env", "list"]) == 0
    out = capsys.readouterr().out
    for name in ("household", "web", "interpreter"):
        assert f"\n{name} " in out
    assert "cannot be used" not in out


def test_a_world_shows_its_options(capsys: Any):
    assert main(["env", "list", "household"]) == 0
    assert "admissible" in capsys.readouterr().out


def test_the_example_keeps_the_contract(capsys: Any):
    assert main(["env", "check", f"{EXAMPLE}:GuessNumber", "--tasks", "2"]) == 0
    assert "keeps the contract in 2 tasks" in capsys.readouterr().out
    assert len(EXAMPLE.read_text().splitlines()) <= 60


def test_a_breach_is_told_and_is_exit_2(capsys: Any):
    assert main(["env", "check", "tests.environments.worlds:Fragile", "--tasks", "1"]) == 2
    out = capsys.readouterr().out
    assert "nonsense: step raised ValueError" in out and "breaks the contract: 1 problem in 1 task" in out


@pytest.mark.parametrize("name", ["household", "interpreter"])
def test_our_own_worlds_keep_the_contract(name: str, capsys: Any):
    assert main(["env", "check", name, "--tasks", "2"]) == 0, capsys.readouterr().out


def test_a_world_without_needs_says_so(capsys: Any):
    assert main(["env", "setup", "tests.environments.worlds:Counting"]) == 0
    assert "needs nothing besides its Python packages" in capsys.readouterr().out
