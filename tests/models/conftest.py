from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bough.models import resolve
from tests import warm


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder that this test has to itself."""
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def warm_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that converts starts without the seconds that another interpreter takes."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{warm.__file__}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The real model in the user's own cache, so that it is fetched once and not once per run."""
    return resolve.smollm2_folder()
