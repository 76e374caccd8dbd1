import asyncio
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from bough.sandbox.base import Result, SandboxLimits
from bough.sandbox.inside.kernel import descendants
from bough.sandbox.isolation import _tried
from bough.sandbox.pool import Sandbox

# Time enough on a busy machine; a program that is meant to run out of time has a limit of its own.
LIMITS = SandboxLimits(timeout_s=20.0, cpu_s=30.0, memory_mb=300, processes=16, disk_mb=8, output_bytes=4096)


class Box:
    """A sandbox for tests that are not coroutines."""

    def __init__(self, runner: asyncio.Runner, sandbox: Sandbox) -> None:
        self.runner, self.sandbox = runner, sandbox

    def run(self, code: str, **more: Any) -> Result:
        return self.runner.run(self.sandbox.run(code, **more))

    def do(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    @property
    def pid(self) -> int:
        """The process that holds the one warm keeper."""
        (worker,) = self.sandbox._idle
        assert worker.pid is not None
        return worker.pid


def isolation_here() -> list[Any]:
    import os

    marks = []
    for kind in ("bubblewrap", "namespaces"):
        missing = kind == "bubblewrap" and shutil.which("bwrap") is None
        trouble = "bwrap is not installed" if missing else _tried(kind, os.geteuid())
        marks.append(pytest.param(kind, marks=pytest.mark.skipif(trouble is not None, reason=str(trouble))))
    return marks


@pytest.fixture(scope="module", params=isolation_here())
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    with asyncio.Runner() as runner:

        async def made() -> Sandbox:
            return Sandbox(LIMITS, workers=1, isolation=request.param)

        sandbox = runner.run(made())
        yield Box(runner, sandbox)
        runner.run(sandbox.close())


@pytest.fixture
def works_afterwards(box: Box) -> Iterator[None]:
    """After the test the next program runs, and finds nothing of the one before."""
    yield
    after = box.run("import os\n6 * 7, os.listdir('/tmp'), os.listdir('/dev/shm')")
    assert after.value == "(42, [], [])", after
    everything = descendants(box.pid)
    assert len(everything) <= 1, everything  # the keeper, below bubblewrap or the launcher
