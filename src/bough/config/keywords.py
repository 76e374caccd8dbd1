"""Keyword settings of a Python function: those of a command's `Config`, with their types, defaults and help."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from bough.config.base import Config, leaves
from bough.errors import InputError
from bough.ledger import plural

C = TypeVar("C", bound=Config)
F = TypeVar("F", bound=Callable[..., Any])
# Settings of what a command prints: a function returns it.
COMMAND_LINE_ONLY = ("as_json", "dry_run", "samples")


def settings_of(config_class: type[Config], *replaced: str) -> Callable[[F], F]:
    """Declares that `**settings` of a function are those of `config_class`, by their flat names.

    Gives the function a signature and a docstring that list them, for `help()` and
    completion. `replaced` names the fields that the function's own parameters stand for.
    """

    def declare(function: F) -> F:
        own = inspect.signature(function)
        parameters = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        settings = {
            name: leaf
            for name, leaf in leaves(config_class).items()
            if name not in own.parameters and name not in replaced and name not in COMMAND_LINE_ONLY
        }
        for name, leaf in settings.items():
            default = inspect.Parameter.empty if leaf.info.is_required() else leaf.default
            kind, annotation = inspect.Parameter.KEYWORD_ONLY, leaf.info.annotation
            parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
        lines = [f"    {name}: {leaf.info.description}" for name, leaf in settings.items() if leaf.info.description]
        described: Any = function
        described.__signature__ = own.replace(parameters=parameters)
        described.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Settings:", *lines])
        return function

    return declare


def make_config(config_class: type[C], function: str, settings: Mapping[str, Any], **given: Any) -> C:
    """The command's settings: those of the caller, and `given`, what the function's own parameters stand for.

    All problems are one InputError that names the function.
    """
    foreign = [name for name in settings if name in given or name in COMMAND_LINE_ONLY]
    if foreign:
        raise InputError(f"bough.{function}() has no setting {', '.join(foreign)}")
    try:
        return config_class(**settings, **given)
    except InputError as error:
        count = plural(len(error.problems), "problem")
        raise InputError(f"bough.{function}() has {count}:", error.problems) from None
