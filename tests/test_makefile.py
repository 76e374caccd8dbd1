"""What the make targets run, with a stand-in for the environment that they set up, and what hosted CI runs."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.blocks import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*"
case "$*" in {failing}) exit 1;; esac
"""


@pytest.fixture
def make(tmp_path: Path):
    """Runs a target with programs that only print their arguments; those that match `failing` fail."""

    def run(target: str, failing: str = "nothing") -> tuple[int, list[str]]:
        place = tmp_path / "bin"
        place.mkdir()
        for name in ("bough", "python", "ruff", "mypy", "mkdocs"):
            (place / name).write_text(STAND_IN.format(failing=failing))
            (place / name).chmod(0o755)
        for name in ("ready", "docs-ready"):
            (tmp_path / name).touch()  # newer than what it depends on
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        command = ["make", "--silent", target, f"VENV={tmp_path}"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
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


def test_hosted_ci_runs_the_make_targets_on_every_supported_python():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == re.findall(r":: (3\.\d+)", " ".join(classifiers))
    assert matrix["os"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in workflow["jobs"].items()}
    assert commands == {
        "test": ["make check", "make test"],
        "cluster": ["make test-cluster"],
        "docs": ["make docs", "make wheel"],
    }


def test_hosted_ci_runs_all_that_the_check_of_a_clean_clone_runs():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    targets = re.findall(r"^make .+$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert targets == [line for line in targets if f"- run: {line}\n" in workflow] and len(targets) > 1
