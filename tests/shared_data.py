"""Data that tests read and that is no part of the repository."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "../shared/data"


def shared_data(name: str) -> Path:
    """A file of the shared data; a test that needs it is skipped where it is missing."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"the shared data has no {name} here")
    return path
