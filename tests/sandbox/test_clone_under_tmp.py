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
# Runs programs one after the other in a sandbox: a JSON list in, their results out.
SEVERAL = """
import asyncio, json, sys
from dataclasses import asdict
from bough.sandbox.pool import Sandbox
async def main():
    async with Sandbox(workers=1, isolation=sys.argv[1]) as sandbox:
        print(json.dumps([asdict(await sandbox.run(code, timeout_s=60)) for code in json.load(sys.stdin)]))
asyncio.run(main())
"""


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
        command = [str(python), "-c", SEVERAL, isolation]
        done = started(user, *command, input=json.dumps(programs), env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        results: list[dict[str, Any]] = json.loads(done.stdout)
        return results

    return run


def test_the_environment_is_shown_read_only_and_nothing_else_is(sandboxed: Any, python: Path):
    folder = python.parents[3]
    hidden = [str(folder), str(folder / "canary"), str(python)]
    write = "import marker, os\n[os.access(p, os.W_OK) for p in (marker.__file__, marker.place, os.__file__)]"
    walk = "import os\n[f'{folder}/{name}' for folder, _, names in os.walk('/') for name in names if 'canary' in name]"
    word, where, error, writable, canaries, seen, listed = sandboxed(
        "import marker\nmarker.word",
        "import sys, json\nsys.base_prefix, json.__file__",
        "import marker\nmarker.nothing",
        write,
        walk,
        f"import os\n[os.path.lexists(p) for p in {hidden}]",
        "import os\nos.makedirs('/tmp/a/b')\nos.listdir('/tmp')",
    )
    assert word["value"] == "'from the environment'", word
    assert "/clone" not in where["value"] and where["value"].count("/base") == 2
    assert "bough-clone" not in error["error"]
    assert writable["value"] == seen["value"] == "[False, False, False]" and canaries["value"] == "[]"
    assert listed["value"] == "['a']"
