"""Python, its packages and Bough itself under /tmp: a sandbox sees them, and nothing else that is there."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.layout import build

HERE = Path(__file__).parent
USERS = ("this", "ordinary")


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bough-clone-", dir="/tmp") as folder:
        yield build(Path(folder))


def started(user: str, *command: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """A command as this user or, where that is root, as an ordinary one."""
    prefix = [sys.executable, "-m", "tests.sandbox.as_user"] if user == "ordinary" else []
    return subprocess.run(
        [*prefix, *command], cwd=HERE.parents[1], capture_output=True, text=True, timeout=200, check=False, **more
    )


@pytest.fixture(
    scope="module",
    params=[(isolation, user) for isolation in ("bubblewrap", "namespaces") for user in USERS],
    ids="-".join,
)
def sandboxed(request: pytest.FixtureRequest, python: Path) -> Any:
    """Runs programs in a sandbox that the Python under /tmp starts."""
    isolation, user = request.param
    if user == "ordinary" and os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    ask = f"import os; from bough.sandbox.isolation import _tried; print(_tried({isolation!r}, os.geteuid()) or '')"
    # With the usual Python: what keeps that one from isolating is not what is tested here.
    if trouble := started(user, sys.executable, "-c", ask).stdout.strip():
        pytest.skip(trouble)

    def run(*programs: str) -> list[dict[str, Any]]:
        environment = os.environ | {"PYTHONPATH": str(python.parents[2] / "src")}
        command = [str(python), str(HERE / "several.py"), isolation]
        done = started(user, *command, input=json.dumps(programs), env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        results: list[dict[str, Any]] = json.loads(done.stdout)
        return results

    return run


def test_a_program_runs_with_the_environments_packages(sandboxed: Any):
    word, python, error = sandboxed(
        "import marker\nmarker.word",
        "import sys, json\nsys.base_prefix, json.__file__",
        "import marker\nmarker.nothing",
    )
    assert word["value"] == "'from the environment'", word
    assert "/clone" not in python["value"] and python["value"].count("/base") == 2
    assert "bough-clone" not in error["error"]


def test_what_is_shown_is_read_only_and_nothing_else_is_shown(sandboxed: Any, python: Path):
    folder = python.parents[3]
    write = "import marker, os\n[os.access(p, os.W_OK) for p in (marker.__file__, marker.place, os.__file__)]"
    walk = "import os\n[f'{folder}/{name}' for folder, _, names in os.walk('/') for name in names if 'canary' in name]"
    host = f"import os\n[os.path.lexists(p) for p in {[str(folder), str(folder / 'canary'), str(python)]}]"
    spoil = "import marker\nopen(marker.__file__, 'a')"
    writable, canaries, seen, spoilt, listed = sandboxed(write, walk, host, spoil, "import os\nos.listdir('/tmp')")
    assert writable["value"] == "[False, False, False]"
    assert canaries["value"] == "[]" and seen["value"] == "[False, False, False]"
    assert "Read-only" in spoilt["error"] or "Permission" in spoilt["error"]
    assert listed["value"] == "[]"
    assert "word" in next(python.parents[1].glob("lib/*/site-packages/marker.py")).read_text()


def test_scratch_is_limited_and_wiped_as_ever(sandboxed: Any):
    fill = (
        "import os\nos.makedirs('/tmp/a/b')\nwritten = 0\ntry:\n    with open('/tmp/a/b/file', 'wb', 0) as file:\n"
        "        while True:\n            written += file.write(b'x' * 65536)\nexcept OSError:\n    pass\nwritten"
    )
    look = "import marker, os\nos.listdir('/tmp'), os.listdir('/dev/shm'), marker.word"
    filled, after, again, last = sandboxed(fill, look, fill, look)
    assert 0 < int(filled["value"]) <= 8 << 20 and again["value"] == filled["value"]
    assert after["value"] == last["value"] == "([], [], 'from the environment')"
