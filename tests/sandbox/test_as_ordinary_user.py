"""The escapes, the limits and the answers once more, as somebody who is not root.

How sessions share places (test_places.py) is decided outside the sandbox, where the user changes nothing.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.skipif(os.geteuid() != 0, reason="this is already run by an ordinary user")
def test_no_program_escapes_or_exceeds_its_limits_for_an_ordinary_user():
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o777)
        suite = subprocess.run(
            [
                *(sys.executable, "-m", "tests.sandbox.as_user"),
                # In one process: it waits most of its time, while others have work.
                *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "--basetemp", f"{home}/tests"),
                *(str(HERE / f"test_{what}.py") for what in ("escapes", "limits", "answers")),
            ],
            cwd=HERE.parents[1],
            env={"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=280,
        )
    assert suite.returncode == 0, suite.stdout[-4000:] + suite.stderr[-2000:]
    if re.search(r"SKIPPED.*namespaces", suite.stdout):
        pytest.skip("an ordinary user may not make namespaces here")
