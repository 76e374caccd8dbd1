"""The closing lines of a test run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.blocks import ROOT

TESTS = {
    "test_a.py": """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_a(number):
    pytest.skip("no browser")

@pytest.mark.skipif(True, reason="no GPU")
def test_b():
    pass

def test_c():
    pass
""",
    "test_b.py": "import pytest\npytest.importorskip('no_such_module', reason='no such module')\n",
}


@pytest.mark.parametrize("processes", [[], ["-n", "2"]], ids=["one process", "two processes"])
def test_a_run_ends_with_what_was_skipped_and_why(tmp_path: Path, processes: list[str]):
    for name, text in TESTS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", *processes, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    *_, title, first, second, third, last = done.stdout.strip().splitlines()
    assert "skipped tests" in title
    assert [line.split(maxsplit=1) for line in (first, second, third)] == [
        ["3", "no browser"], ["1", "no GPU"], ["1", "no such module"],
    ]  # fmt: skip
    assert re.fullmatch(r"1 passed, 5 skipped in [\d.]+s", last)
