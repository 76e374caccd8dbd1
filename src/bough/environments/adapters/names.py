"""The names of adapters: `gymnasium:ID`, `textarena:GAME`, `mcp:COMMAND or URL`, `openenv:URL`,
`verifiers:TASKSET`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import cast

from bough.environments.base import Environment
from bough.errors import InputError


@dataclass(frozen=True)
class Adapter:
    """`module` has a function `adapt(name)` that returns the environment class of what follows the colon."""

    form: str
    about: str
    module: str
    extra: str
    package: str

    @property
    def problem(self) -> str | None:
        """Why it cannot be used, if it cannot."""
        if find_spec(self.package) is not None:
            return None
        return f"{self.package} is not installed; run: pip install 'bough[{self.extra}]'"


ADAPTERS = {
    "gymnasium": Adapter(
        "gymnasium:ID",
        "Environments of Gymnasium with text or discrete actions.",
        "bough.environments.adapters.gymnasium",
        "gymnasium",
        "gymnasium",
    ),
    "mcp": Adapter(
        "mcp:COMMAND or URL",
        "The tools of an MCP server; tasks and their checks come from a file.",
        "bough.environments.adapters.mcp",
        "mcp",
        "mcp",
    ),
    "openenv": Adapter(
        "openenv:URL",
        "Environments on an OpenEnv server.",
        "bough.environments.adapters.openenv",
        "openenv",
        "websockets",
    ),
    "textarena": Adapter(
        "textarena:GAME",
        "TextArena's games for one player, or for two against a random or a fixed opponent.",
        "bough.environments.adapters.textarena",
        "textarena",
        "textarena",
    ),
    "verifiers": Adapter(
        "verifiers:TASKSET",
        "Tasksets of verifiers, played by one of its harnesses.",
        "bough.environments.adapters.verifiers",
        "verifiers",
        "verifiers",
    ),
}


@cache
def adapt(name: str) -> type[Environment] | None:
    """The environment class of `scheme:rest`; None where the scheme is not an adapter's.

    Raises InputError where its package is missing or has no such environment.
    """
    scheme, colon, rest = name.partition(":")
    adapter = ADAPTERS.get(scheme) if colon else None
    if adapter is None:
        return None
    if adapter.problem is not None:
        raise InputError(f"environment {name!r}: {adapter.problem}")
    if not rest.strip():
        raise InputError(f"environment {name!r} is incomplete; write {adapter.form}")
    return cast("type[Environment]", import_module(adapter.module).adapt(rest.strip()))
