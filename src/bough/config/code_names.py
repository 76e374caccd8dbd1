"""Settings that can name code: an environment or a reward as `module:name` or `path/to/file.py:name`.

Code may be named on the command line and in Python. A file (a recipe, a `--config` file,
a record) may come from anyone, so reading it must never run code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

SETTINGS = ("environment", "rewards", "rules")


def is_code(name: str) -> bool:
    """Whether the name of an environment or a reward is a module or a file to load."""
    return ":" in name


def code_in(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every setting that names code, with the name."""
    for key in SETTINGS:
        given = settings.get(key)
        # Rewards are a mapping by name, or a list of NAME=WEIGHT as on the command line.
        names = [str(one).partition("=")[0] for one in given] if isinstance(given, dict | list) else [given]
        yield from ((key, name) for name in names if isinstance(name, str) and is_code(name))
