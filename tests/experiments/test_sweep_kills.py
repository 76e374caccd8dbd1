import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiments.counting import ENVIRONMENT, configured

TURNS = "after.max_turns=2,4"


def killed_at(folder: Path, line: str) -> None:
    """Starts the sweep in a process and kills it some time after it says this line."""
    command = [sys.executable, "-m", "bough", "sweep", "counting.yaml", "--vary", TURNS, "--seeds", "2", "-o", "sweep"]
    with subprocess.Popen([*command, "--set", ENVIRONMENT], cwd=folder, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert any(line in said for said in child.stderr), "it ended before"
        child.kill()


def test_a_sweep_that_is_killed_resumes_and_ends_in_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    killed, whole = configured(tmp_path / "killed", TURNS), configured(tmp_path / "whole", TURNS)
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))  # of the child, which has another folder
    killed_at(tmp_path / "killed", "▸ run 2 of 4")
    lines: list[str] = []
    killed.play(lines.append)
    whole.play(lambda _: None)
    assert killed.failed == {} and "  01-before: already done" in lines
    assert (killed.folder / "results.csv").read_text() == (whole.folder / "results.csv").read_text()
