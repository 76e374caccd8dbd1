"""What does not need Linux works without it, and what does says so: tried on a Python that looks like macOS'."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.blocks import ROOT
from tests.warm import Warm

WORK = (
    "doctor examples/household.jsonl --model tiny",
    "data stats examples/household.jsonl",
    "env list",
    "env check household --tasks 1",
    "collect --model expert --environment household --tasks 2 --output played",
    "demos played -o demonstrations.jsonl",
)
SANDBOX = "collect --model expert --environment interpreter --tasks 1 --output code"
UNSAFE = "collect --model expert --environment interpreter --options unsafe_no_sandbox=true --tasks 1 --output unsafe"
SETUP = ("env setup web", "env setup interpreter")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("macos")
    shutil.copytree(ROOT / "examples", folder / "examples")
    # No browser and no package manager: only Python's own folder is on the PATH.
    environment = {
        **os.environ,
        "PATH": str(Path(sys.executable).parent),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PIP_NO_INDEX": "1",
        "XDG_CACHE_HOME": str(folder),
    }
    for name in ("BOUGH_CHROMIUM", "BOUGH_CACHE"):
        environment.pop(name, None)
    commands = (*WORK, SANDBOX, UNSAFE, *SETUP)
    with (folder / "errors").open("wb") as errors:
        program = Warm("tests.on_macos", *commands, folder=folder, environment=environment, errors=errors)
        said = program.communicate()
    assert program.wait() == 0, (folder / "errors").read_text()
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def test_every_module_can_be_imported_that_can_be_on_linux(answers: dict[str, Any]):
    assert answers["imports"] == answers["not on Linux"]


@pytest.mark.parametrize("command", WORK)
def test_what_does_not_need_linux_works(answers: dict[str, Any], command: str):
    status, said = answers[command]
    assert status == 0, said


@pytest.mark.parametrize("command", [SANDBOX, UNSAFE, "env setup interpreter"])
def test_the_sandbox_is_refused_with_a_sentence(answers: dict[str, Any], command: str):
    status, said = answers[command]
    assert status == 2 and "the sandbox needs Linux, and this is darwin" in said
    assert "bug in Bough" not in said


def test_where_no_browser_can_be_had_the_way_on_macos_is_told(answers: dict[str, Any]):
    status, said = answers["env setup web"]
    assert status == 1 and "No Chromium can be installed here." in said and "brew install" in said
    assert "this system has no apt-get" in said and "for Linux on x86_64 only" in said
