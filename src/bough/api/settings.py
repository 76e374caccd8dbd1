"""Keyword settings of the API's functions: the fields of a command's `Config`, with their types, defaults and help."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from bough.config.base import Config
from bough.errors import InputError

C = TypeVar("C", bound=Config)
F = TypeVar("F", bound=Callable[..., Any])
# Settings of what a command prints: a function returns it.
COMMAND_LINE_ONLY = ("as_json", "dry_run", "samples")


def settings_of(config_class: type[Config], *replaced: str) -> Callable[[F], F]:
    """Declares that `**settings` of a function are the fields of `config_class`.

    Gives the function a signature and a docstring that list them, for `help()` and
    completion. `replaced` names the fields that the function's own parameters stand for.
    """

    def declare(function: F) -> F:
        own = inspect.signature(function)
        parameters = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        fields = {
            name: info
            for name, info in config_class.model_fields.items()
            if name not in own.parameters and name not in replaced and name not in COMMAND_LINE_ONLY
        }
        for name, info in fields.items():
            default = inspect.Parameter.empty if info.is_required() else info.get_default(call_default_factory=True)
            parameters.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=info.annotation)
            )
        lines = [f"    {name}: {info.description}" for name, info in fields.items() if info.description]
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
        count = "1 problem" if len(error.problems) == 1 else f"{len(error.problems)} problems"
        raise InputError(f"bough.{function}() has {count}:", error.problems) from None
