"""The commands of the shipped experiments are valid sweeps."""

from pathlib import Path

import pytest
from benchmarks.experiments import EXPERIMENTS

from bough.cli import main


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_sweeps_of_an_experiment_are_valid(name: str, tmp_path: Path):
    for sweep in EXPERIMENTS[name]:
        command = sweep.command(tmp_path / name, Path("data"), [])
        assert "$data" not in " ".join(command)
        assert main([*command[3:], "--dry-run"]) == 0
    assert not list(tmp_path.iterdir())
