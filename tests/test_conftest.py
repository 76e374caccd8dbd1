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
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", *own, *words, str(folder)]
    if ignore_interrupts:
        command = ["/bin/sh", "-c", 'trap "" INT && exec "$@"', "sh", *command]
    ours = ("PYTEST_XDIST", "OMP_NUM_THREADS")  # of the processes in which these tests run
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("options", "passed"), [([], 1), (["-n", "2", "--docs"], 2)], ids=["one process", "two processes"]
)
def test_a_run_ends_with_what_was_skipped_and_why(tmp_path: Path, options: list[str], passed: int):
    for name, text in TESTS.items():
        (tmp_path / name).write_text(text)
    lines = run(tmp_path, *options, "-W", "ignore::pytest.PytestUnknownMarkWarning").stdout.strip().splitlines()
    assert any("skipped tests" in line for line in lines)
    elsewhere = [["1", "make docs runs these pages of the documentation"]] if passed == 1 else []
    assert [line.split(maxsplit=1) for line in lines if re.match(r" +\d+  ", line)] == [
        ["3", "no browser"], *elsewhere, ["1", "no GPU"], ["1", "no such module"],
    ]  # fmt: skip
    counts = f"{passed} passed, {7 - passed} skipped"
    # From a minute on with a clock.
    assert re.fullmatch(rf"{counts} in [\d.]+s( \(\d+:\d\d:\d\d\))?", lines[-1])


def test_every_test_on_a_real_cluster_is_left_to_its_target():
    files = {file.name: file.read_text() for file in (ROOT / "tests" / "cluster" / "real").glob("test_*.py")}
    marked = {
        name for name, text in files.items() if re.search(r"^pytestmark = \[?pytest\.mark\.cluster\b", text, re.M)
    }
    assert files and marked == set(files)


def test_programs_can_be_interrupted_in_a_run_that_a_shell_started_in_the_background(tmp_path: Path):
    (tmp_path / "test_a.py").write_text(INTERRUPTED)
    done = run(tmp_path, ignore_interrupts=True)
    assert done.returncode == 0, done.stdout


def test_only_the_files_of_tests_that_fail_are_kept(tmp_path: Path):
    (tmp_path / "test_a.py").write_text(LEAVES_FILES)
    run(tmp_path, "-c", str(ROOT / "pyproject.toml"))
    assert [path.parent.name for path in (tmp_path / "temporary").glob("*0/file")] == ["test_that_fails0"]


def test_the_slowest_files_start_first():
    assert all((ROOT / "tests" / name).is_file() for name in SLOWEST)
    one = "runs/test_kills.py"
    files = [f"{ROOT}/tests/{name}" for name in ("test_ledger.py", one)]
    with Warm("pytest", "--collect-only", "-p", "no:cacheprovider", *files) as program:
        listed = program.communicate().splitlines()
    assert listed[0].startswith(f"tests/{one}") and any("test_ledger.py" in line for line in listed)
