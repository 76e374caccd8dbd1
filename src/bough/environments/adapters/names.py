"""The names of adapters: `gymnasium:ID`, `textarena:GAME`, `mcp:COMMAND or URL`, `openenv:URL`,
`verifiers:TASKSET`."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar, cast

from pydantic import JsonValue

from bough.environments.base import Environment, EnvironmentFailedError, Observation
from bough.environments.tools import ToolCallEnvironment
from bough.errors import InputError, short_repr
from bough.types import Task, ToolCall


@dataclass(frozen=True)
class Adapter:
    """One library. The module of its name has a function `adapt(name)` for what follows the colon of `form`."""

    form: str
    about: str
    # What the extra of its name installs.
    package: str

    @property
    def problem(self) -> str | None:
        """Why it cannot be used, if it cannot."""
        if find_spec(self.package) is not None:
            return None
        return f"{self.package} is not installed; run: pip install 'bough[{self.form.partition(':')[0]}]'"


ADAPTERS = {
    adapter.form.partition(":")[0]: adapter
    for adapter in (
        Adapter("gymnasium:ID", "Environments of Gymnasium with text or discrete actions.", "gymnasium"),
        Adapter("mcp:COMMAND or URL", "The tools of an MCP server; tasks and their checks come from a file.", "mcp"),
        Adapter("openenv:URL", "Environments on an OpenEnv server.", "websockets"),
        Adapter("textarena:GAME", "TextArena's games for one player.", "textarena"),
        Adapter("verifiers:TASKSET", "Tasksets of verifiers, played by one of its harnesses.", "verifiers"),
    )
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
    return cast("type[Environment]", import_module(f"bough.environments.adapters.{scheme}").adapt(rest.strip()))


E = TypeVar("E", bound=Environment)


def subclass(base: type[E], about: str, **attributes: Any) -> type[E]:
    """The class of one environment of a library, with `about` as its description."""
    return type(base.__name__, (base,), {"__module__": base.__module__, "__doc__": about, **attributes})


# Tools on a server: what they are is known only once it was asked, and whatever it fails at is its own failure.


class RemoteToolEnvironment(ToolCallEnvironment):
    """Its `tools` are those that `offer` was called with."""

    def offer(self, tools: Iterable[tuple[str, str, dict[str, Any]]]) -> None:
        """Sets the tools: the name, the description and the JSON schema of the parameters of each."""
        offered: dict[str, dict[str, Any]] = {}
        for name, description, parameters in tools:
            kinds = isinstance(name, str), isinstance(description, str), isinstance(parameters, dict)
            if not all(kinds) or not name or name in offered:
                raise EnvironmentFailedError(
                    f"the server offers the tool {short_repr(name)}; each needs a name of its own, "
                    "a description that is text, and a JSON schema of its parameters"
                )
            offered[name] = {"name": name, "description": description, "parameters": parameters}
        self.tools = tuple({"type": "function", "function": function} for function in offered.values())

    def _too_slow(self, call: ToolCall, limit_s: float) -> Exception:
        return EnvironmentFailedError(f"the server took longer than {limit_s:.3g} s to answer {call.name}")

    def timed_out(self) -> Observation | None:
        return None


# Tasks by seed: most other libraries know a task only as the seed of a reset.


def seeded_tasks(split: str, seed: int, data: Mapping[str, JsonValue]) -> Iterator[Task]:
    """An endless series of tasks that differ in their seed; each split has its own seeds."""
    rng = random.Random(f"{split} {seed}")  # noqa: S311  no secret
    number = 0
    while True:
        yield Task(id=f"{split}-{seed}-{number}", seed=rng.randrange(2**31), data=dict(data))
        number += 1
