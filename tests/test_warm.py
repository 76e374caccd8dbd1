"""Warm programs are like fresh ones, but for what is loaded."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.warm import Warm

PROGRAM = """
import os, sys
print("torch" in sys.modules, sys.argv[1:], os.getcwd(), os.environ.get("WORD"), sys.stdin.read())
print("a sentence", file=sys.stderr)
sys.exit(3)
"""

THREADS = """
import os
from pathlib import Path

supervisor = Path(f"/proc/{os.getppid()}/status").read_text()
server = supervisor.split("PPid:")[1].split()[0]
names = [(task / "comm").read_text() for task in Path(f"/proc/{server}/task").iterdir()]
# Pools of threads have the name of their process; an allocator's thread has its own, and expects forks.
print(names.count(Path(f"/proc/{server}/comm").read_text()), os.environ.get("TOKENIZERS_PARALLELISM"))
"""


def test_a_program_has_its_own_arguments_folder_environment_and_streams(tmp_path: Path):
    with (tmp_path / "errors").open("wb") as errors:
        program = Warm(None, "a", "b", code=PROGRAM, folder=tmp_path, environment={"WORD": "w"}, errors=errors)
        program.stdin.write("hello")
        assert program.communicate() == f"True ['a', 'b'] {tmp_path} w hello\n"
    assert program.wait() == 3
    assert (tmp_path / "errors").read_text() == "a sentence\n"
    assert "WORD" not in os.environ


def test_a_module_runs_as_the_main_one_and_a_mistake_ends_with_one():
    with Warm("platform", "--terse") as program:
        said = program.communicate()
    assert said.startswith("Linux") or said.startswith("macOS")
    with Warm(None, code="raise ValueError") as program:
        pass
    assert program.wait() == 1


def test_a_program_can_be_killed_and_asked_whether_it_runs():
    with Warm(None, code="print('here', flush=True); input()") as program:
        assert program.stdout.readline() == "here\n" and program.poll() is None
        program.kill()
        assert program.wait() == program.poll() == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_server_has_no_threads_that_a_fork_would_lose(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    with Warm(None, code=THREADS) as program:
        assert program.communicate() == "1 None\n"
