"""Settings that can name code: an environment, a reward or an agent as `module:name` or `path/to/file.py:name`.

Code may be named on the command line and in Python. A file (a recipe, a `--config` file,
a record) may come from anyone, so reading it must never run code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

SETTINGS = ("environment", "rewards", "rules", "agent", "own_agent")
# The part that is written as a mapping with a `name`, or as the name alone; and one that has a setting's name.
NAMED_BY_PART = "environment"
PARTS = (NAMED_BY_PART, "agent")
# Settings that are mappings with any keys.
OPEN = ("options", "rule_options")
# Environments of installed packages, by the names those packages gave them. With a second colon
# gymnasium imports a module, and the other adapters run commands or contact servers.
OF_A_PACKAGE = re.compile(r"(?:gymnasium|textarena):[^:]+")


def is_code(name: str) -> bool:
    """Whether the name of an environment or a reward is code to load, a command to run or a server to contact."""
    return ":" in name and OF_A_PACKAGE.fullmatch(name) is None


def code_in(settings: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Every setting that names code: its name as it is written, its flat name, and the name of the code."""
    for key, given in settings.items():
        if key in SETTINGS and not (key in PARTS and isinstance(given, Mapping)):
            yield from ((key, key, name) for name in _code(given))
        elif isinstance(given, Mapping) and key not in OPEN:
            for inside, value in given.items():
                setting = NAMED_BY_PART if (key, inside) == (NAMED_BY_PART, "name") else str(inside)
                if setting in SETTINGS:
                    yield from ((f"{key}.{inside}", setting, name) for name in _code(value))


def _code(given: Any) -> Iterator[str]:
    # Rewards are a mapping by name, or a list of NAME=WEIGHT as on the command line.
    names = [str(one).partition("=")[0] for one in given] if isinstance(given, Mapping | list) else [given]
    yield from (name for name in names if isinstance(name, str) and is_code(name))
