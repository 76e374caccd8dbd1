"""What all tests share: the closing lines of a test run, and interrupts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.blocks import ROOT
from tests.conftest import SLOWEST
from tests.warm import Warm

TESTS = {
    "test_a.py": """
import os
import pytest

@pytest.mark.parametrize("number", range(3))
def test_a(number):
    pytest.skip("no browser")

@pytest.mark.skipif(True, reason="no GPU")
def test_b():
    pass

def test_c():
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    assert processes * threads <= max(processes, os.cpu_count())
    assert bool(threads) == (processes > 1)

@pytest.mark.docs
def test_d():
    pass
""",
    "test_b.py": "import pytest\npytest.importorskip('no_such_module', reason='no such module')\n",
}


INTERRUPTED = """
import signal, subprocess, sys

def test_a_program_that_is_interrupted_ends():
    program = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    assert subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL).returncode == -signal.SIGINT
"""

LEAVES_FILES = """
def test_that_passes(tmp_path):
    (tmp_path / "file").touch()

def test_that_fails(tmp_path):
    (tmp_path / "file").touch()
    assert False
"""


def run(folder: Path, *words: str, ignore_interrupts: bool = False) -> subprocess.CompletedProcess[str]:
    """The tests of a folder, run with this project's conftest."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    # Without a folder of its own for temporary files, pytest removes those of earlier runs when it ends.
    own = ["--basetemp", str(folder / "temporary")]
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:anyio", *own, *words, str(folder)]
    if ignore_interrupts:
        command = ["/bin/sh", "-c", 'trap "" INT && exec "$@"', "sh", *command]
    ours = ("PYTEST_XDIST", "OMP_NUM_THREADS")  # of the processes in which these tests run
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run of all tests here with this project's settings, as a shell starts one in the background; its last lines."""
    folder = tmp_path_factory.mktemp("run")
    for name, text in {**TESTS, "test_c.py": INTERRUPTED, "test_d.py": LEAVES_FILES}.items():
        (folder / name).write_text(text)
    done = run(folder, "-c", str(ROOT / "pyproject.toml"), "--tb=no", ignore_interrupts=True)
    return folder, done.stdout.strip().splitlines()


def skipped(lines: list[str]) -> list[list[str]]:
    assert any("skipped tests" in line for line in lines)
    return [line.split(maxsplit=1) for line in lines if re.match(r" +\d+  ", line)]


# From a minute on with a clock.
TOOK = r"in [\d.]+s( \(\d+:\d\d:\d\d\))?"


def test_a_run_ends_with_what_was_skipped_and_why(in_one_process: tuple[Path, list[str]]):
    _, lines = in_one_process
    assert skipped(lines) == [
        ["3", "no browser"], ["1", "make docs runs these pages of the documentation"], ["1", "no GPU"],
        ["1", "no such module"],
    ]  # fmt: skip
    assert re.fullmatch(rf"1 failed, 3 passed, 6 skipped {TOOK}", lines[-1])


def test_so_does_a_run_of_two_processes(tmp_path: Path):
    for name, text in TESTS.items():
        (tmp_path / name).write_text(text)
    words = ["-q", "-n", "2", "--docs", "-W", "ignore::pytest.PytestUnknownMarkWarning"]
    lines = run(tmp_path, *words).stdout.strip().splitlines()
    assert skipped(lines) == [["3", "no browser"], ["1", "no GPU"], ["1", "no such module"]]
    assert re.fullmatch(rf"2 passed, 5 skipped {TOOK}", lines[-1])


def test_every_test_on_a_real_cluster_is_left_to_its_target():
    files = {file.name: file.read_text() for file in (ROOT / "tests" / "rollouts" / "ray" / "real").glob("test_*.py")}
    marked = {
        name for name, text in files.items() if re.search(r"^pytestmark = \[?pytest\.mark\.cluster\b", text, re.M)
    }
    assert files and marked == set(files)


def test_programs_can_be_interrupted_in_a_run_that_a_shell_started_in_the_background(
    in_one_process: tuple[Path, list[str]],
):
    _, lines = in_one_process
    assert [line.split("::")[1].split()[0] for line in lines if line.startswith("FAILED")] == ["test_that_fails"]


def test_only_the_files_of_tests_that_fail_are_kept(in_one_process: tuple[Path, list[str]]):
    folder, _ = in_one_process
    assert [path.parent.name for path in (folder / "temporary").glob("*0/file")] == ["test_that_fails0"]


def test_the_slowest_files_start_first():
    assert all((ROOT / "tests" / name).is_file() for name in SLOWEST)
    one = "experiments/test_run_kills.py"
    files = [f"{ROOT}/tests/{name}" for name in ("test_ledger.py", one)]
    with Warm("pytest", "--collect-only", "-p", "no:cacheprovider", *files) as program:
        listed = program.communicate().splitlines()
    assert listed[0].startswith(f"tests/{one}") and any("test_ledger.py" in line for line in listed)
