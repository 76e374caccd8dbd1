from __future__ import annotations

from pathlib import Path

import pytest

from bough.errors import BoughError
from bough.worlds.functions import benchmark


@pytest.fixture(scope="session")
def bfcl() -> Path:
    """The benchmark in the user's own cache, so that it is fetched once and not once per run."""
    try:
        return benchmark.local_folder()
    except BoughError as error:
        pytest.skip(f"BFCL is not in the cache and cannot be fetched: {str(error).splitlines()[0]}")
