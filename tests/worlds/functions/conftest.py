from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bough.errors import BoughError
from bough.worlds.functions import benchmark
from bough.worlds.functions.environment import Functions


@pytest.fixture(scope="session")
def bfcl() -> Path:
    """The benchmark in the user's own cache, so that it is fetched once and not once per run."""
    try:
        return benchmark.local_folder()
    except BoughError as error:
        pytest.skip(f"BFCL is not in the cache and cannot be fetched: {str(error).splitlines()[0]}")


@pytest.fixture(scope="module")
def runner(bfcl: Path) -> Iterator[asyncio.Runner]:
    """An event loop for all tests of a file, so that they share a sandbox."""
    with asyncio.Runner() as runner:
        yield runner
        runner.run(Functions.shutdown())
