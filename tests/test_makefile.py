"""What `make demo` and `make test` run, with a stand-in for the environment that they set up."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.blocks import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*"
case "$*" in {failing}) exit 1;; esac
"""


@pytest.fixture
def make(tmp_path: Path):
    """Runs a target with programs that only say what they were asked; some of it fails."""

    def run(target: str, failing: str = "nothing") -> tuple[int, list[str]]:
        place = tmp_path / "bin"
        place.mkdir()
        for name in ("bough", "python", "ruff", "mypy"):
            (place / name).write_text(STAND_IN.format(failing=failing))
            (place / name).chmod(0o755)
        (tmp_path / "ready").touch()  # newer than what it depends on
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        command = ["make", "--silent", target, f"VENV={tmp_path}"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout.splitlines()

    return run


def test_the_demo_plays_the_web_where_there_is_a_browser(make):
    assert make("demo") == (0, ["bough env setup web", "bough run demo"])


def test_the_demo_plays_the_household_where_there_is_no_browser_and_says_so(make):
    status, lines = make("demo", failing="*setup*")
    assert status == 0 and lines[::2] == ["bough env setup web", "bough run demo-household"]
    assert "plays the household instead of the web, because there is no browser" in lines[1]


def test_a_demo_that_fails_is_a_failure(make):
    assert make("demo", failing="*run*")[0] != 0


@pytest.mark.parametrize("failing", ["nothing", "*setup*"])
def test_the_tests_run_with_a_browser_and_bubblewrap_or_without(make, failing):
    status, lines = make("test", failing=failing)
    assert status == 0
    assert lines[:2] == ["bough env setup web", "bough env setup interpreter"] and "-m pytest" in lines[2]
