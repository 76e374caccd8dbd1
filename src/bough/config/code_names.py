"""Settings that can name code: an environment, a reward or an agent as `module:name` or `path/to/file.py:name`.

The address of a cluster is one of them: Ray unpickles what the other machines send, so they can run code here.
Code may be named on the command line and in Python. A file (a recipe, a `--config` file,
a record) may come from anyone, so reading it must never run code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

SETTINGS = ("environment", "rewards", "rules", "agent", "own_agent", "cluster")
# Parts that are written as a mapping, in which this setting names the code, or as the name alone; and one that has
# a setting's name.
NAMED_BY_PART = {"environment": "name", "cluster": "address"}
PARTS = (*NAMED_BY_PART, "agent")
# Settings of a command that change settings of a recipe.
CHANGES = ("set", "vary")
# Settings that are mappings with any keys.
OPEN = ("options", "rule_options")
# Environments of installed packages, by the names those packages gave them. With a second colon
# gymnasium imports a module, and the other adapters run commands or contact servers.
OF_A_PACKAGE = re.compile(r"(?:gymnasium|textarena):[^:]+")


def is_code(name: str) -> bool:
    """Whether a setting is code to load, a command to run or a server to contact."""
    return ":" in name and OF_A_PACKAGE.fullmatch(name) is None


def code_in(settings: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Every setting that names code: its name as it is written, its flat name, and the name of the code."""
    for key, given in settings.items():
        if key in SETTINGS and not (key in PARTS and isinstance(given, Mapping)):
            yield from ((key, key, name) for name in _code(given))
        elif isinstance(given, Mapping) and key not in OPEN:
            for inside, value in given.items():
                setting = key if NAMED_BY_PART.get(key) == inside else str(inside)
                if setting in SETTINGS:
                    yield from ((f"{key}.{inside}", setting, name) for name in _code(value))


def code_in_change(key: str, value: Any) -> Iterator[str]:
    """Names of code in a change of a recipe, such as `grpo.environment` or `defaults`, to `value`."""
    *_, part, last = ["", *key.split(".")]
    # The key may end in a setting or in one inside a part, or the value may give several settings.
    meant = [{last: value}, {part: {last: value}}, *([value] if isinstance(value, Mapping) else [])]
    yield from (name for one in meant for _, _, name in code_in(one))


def _code(given: Any) -> Iterator[str]:
    # Rewards are a mapping by name, or a list of NAME=WEIGHT as on the command line.
    names = [str(one).partition("=")[0] for one in given] if isinstance(given, Mapping | list) else [given]
    yield from (name for name in names if isinstance(name, str) and is_code(name))
