"""Modules that are imported when a test first uses them.

Each worker imports all test files to collect them, but runs only some of them.
"""

from importlib import import_module
from typing import Any


class Later:
    """Stands for a module: `stats = Later("scipy.stats")`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks for its own marks on all that a test file has
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
