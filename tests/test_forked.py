"""Test processes that are forked from the warm one: which, and with what in them."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import forked, warm

CODE = """
import os, sys
print("torch" in sys.modules, sys.argv, os.getcwd(), os.environ["WORD"], sys.stdin.readline())
print("a sentence", file=sys.stderr)
os.kill(os.getpid(), 15) if "killed" in os.environ["WORD"] else sys.exit(3)
"""
COLLECT = """
import os, sys
from hypothesis.internal.conjecture import providers
from bough import cli
from tests.loaded import load_tests
sys.stdout = open(os.devnull, "w")
load_tests([sys.argv[1]])
print("test_loaded_before_the_fork" in sys.modules, id(cli) in providers._seen_modules, file=sys.__stdout__)
"""


def a_config(numprocesses: int | None, plugin: bool) -> Any:
    return SimpleNamespace(
        args=["tests"],
        invocation_params=SimpleNamespace(dir=Path("/project")),
        getoption=lambda name, default: numprocesses if name == "numprocesses" else default,
        pluginmanager=SimpleNamespace(has_plugin=lambda name: plugin and name == "tests.forked"),
    )


def test_the_tests_are_loaded_where_processes_will_be_forked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(forked, "CAN_FORK", True)
    assert forked.to_collect(a_config(4, plugin=True)) == ["/project/tests"]
    assert forked.to_collect(a_config(None, plugin=True)) == forked.to_collect(a_config(4, plugin=False)) == []
    monkeypatch.setattr(forked, "CAN_FORK", False)
    assert forked.to_collect(a_config(4, plugin=True)) == []


@pytest.mark.parametrize("can_fork", [True, False])
def test_processes_are_started_by_the_program_that_asks_for_a_fork(monkeypatch: pytest.MonkeyPatch, can_fork: bool):
    execnet = pytest.importorskip("execnet")
    monkeypatch.setattr(forked, "CAN_FORK", can_fork)
    spec = execnet.XSpec("popen")
    forked.pytest_xdist_setupnodes([spec])
    wanted = [sys.executable, warm.__file__] if can_fork else None
    assert (shlex.split(spec.python) if spec.python else None) == wanted


@pytest.mark.parametrize(("word", "code"), [("w", 3), ("killed", 128 + 15)])
def test_the_program_has_the_streams_folder_and_environment_of_the_one_that_asks(tmp_path: Path, word: str, code: int):
    command = [sys.executable, warm.__file__, "-u", "-c", CODE, "a", "b"]
    environment = os.environ | {"WORD": word}
    done = subprocess.run(command, input="hello", capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == code
    assert done.stderr == "a sentence\n"
    assert word == "killed" or done.stdout == f"True ['-c', 'a', 'b'] {tmp_path} {word} hello\n"


def test_the_modules_of_tests_are_imported_and_constants_read_before_the_fork(tmp_path: Path):
    file = tmp_path / "test_loaded_before_the_fork.py"
    file.write_text("def test_nothing():\n    pass\n")
    with warm.Warm(None, str(file), code=COLLECT) as program:
        assert program.communicate() == "True True\n"
