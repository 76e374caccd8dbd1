"""The environments that installed packages register: what each is, and which options it has."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from typing import Any

from bough.environments.base import Environment
from bough.environments.registry import find, plugged_in
from bough.errors import InputError


@dataclass(frozen=True)
class EnvironmentOption:
    """One option; `default` is None where it must be given."""

    name: str
    default: Any
    required: bool
    about: str


@dataclass(frozen=True)
class ListedEnvironment:
    """One environment. `problem` says why it cannot be used, if it cannot."""

    name: str
    about: str = ""
    max_turns: int | None = None
    options: tuple[EnvironmentOption, ...] = ()
    problem: str | None = None

    @property
    def summary(self) -> str:
        """The first line of its description."""
        return self.about.partition("\n")[0]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def list_environments() -> list[ListedEnvironment]:
    """List the environments that can be named, with their options; one that cannot be loaded has a `problem`."""
    return [_listed(name) for name in plugged_in()]


def describe(name: str) -> ListedEnvironment:
    """One environment: a registered name, module:Class or path/to/file.py:Class."""
    found: type[Environment] = find(name)
    options = tuple(
        EnvironmentOption(
            option,
            None if info.is_required() else info.get_default(call_default_factory=True),
            info.is_required(),
            info.description or "",
        )
        for option, info in found.Options.model_fields.items()
    )
    return ListedEnvironment(found.name, inspect.getdoc(found) or "", found.max_turns, options)


def _listed(name: str) -> ListedEnvironment:
    try:
        return describe(name)
    except InputError as error:
        return ListedEnvironment(name, problem=str(error))
