from __future__ import annotations

from pathlib import Path

import pytest

from bough.models import resolve


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder that this test has to itself."""
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The real model in the user's own cache, so that it is fetched once and not once per run."""
    return resolve.smollm2_folder()
