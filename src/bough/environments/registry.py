"""From a name to an environment: built in, plugged in, or out of your own file.

household                      one of ours
guess                          a package's, by its entry point in the group "bough.environments"
my_package.worlds:Guess        a class of an installed module
worlds/guess.py:Guess          a class of a file
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from bough import given
from bough.config.code_names import is_code
from bough.environments.base import Environment
from bough.errors import InputError, did_you_mean

BUILT_IN = {
    "household": "bough.worlds.household.environment:Household",
    "web": "bough.worlds.web.environment:Web",
    "interpreter": "bough.worlds.interpreter.environment:Interpreter",
}
GROUP = "bough.environments"


def find(name: str) -> type[Environment]:
    """The environment class of that name, which the user gave. Raises InputError saying what was tried.

    A name that stands in a file goes to `find_listed`: this one runs the code that the name points to.
    """
    return _environment(_load(name, name), name) if is_code(name) else find_listed(name)


def find_listed(name: str) -> type[Environment]:
    """The environment of that name, if it is built in or installed: all that a file may name."""
    if (handed_in := given.ENVIRONMENTS.get(name)) is not None:
        return _environment(handed_in, name)
    if (target := BUILT_IN.get(name)) is not None:
        return _environment(_load(target, name), name)
    points = plugged_in()
    if name not in points:
        nearest = did_you_mean(name, [*BUILT_IN, *points])
        raise InputError(
            f"there is no environment {name!r}{nearest}; your own is given as module:Class or path/to/file.py:Class"
        )
    try:
        found = points[name].load()
    except Exception as error:  # a plug-in fails in whatever way it likes
        raise InputError(f"environment {name!r} ({points[name].value}) cannot be loaded: {_said(error)}") from error
    return _environment(found, name)


def plugged_in() -> dict[str, EntryPoint]:
    """The entry points of installed packages, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def _load(target: str, name: str) -> Any:
    # The last colon parts module and class; a Windows drive has one in front.
    place, _, attribute = target.rpartition(":")
    try:
        module = _module_of_file(Path(place)) if place.endswith(".py") else import_module(place)
    except InputError:
        raise
    except Exception as error:  # code that is not ours fails in whatever way it likes
        raise InputError(f"environment {name!r}: {place} cannot be loaded: {_said(error)}") from error
    if not hasattr(module, attribute):
        classes = [key for key, value in vars(module).items() if inspect.isclass(value) and hasattr(value, "step")]
        raise InputError(f"environment {name!r}: {place} has no {attribute!r}{did_you_mean(attribute, classes)}")
    return getattr(module, attribute)


def _module_of_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    name = f"bough_environment_{path.stem}"
    if (known := sys.modules.get(name)) is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _environment(found: Any, name: str) -> type[Environment]:
    if not inspect.isclass(found):
        raise InputError(f"environment {name!r} is a {type(found).__name__}; it must be a class")
    if missing := [method for method in ("start", "step") if not callable(getattr(found, method, None))]:
        raise InputError(f"environment {name!r} has no method {' and no '.join(missing)}")
    if not issubclass(found, Environment):
        # A class with start and step is an environment; the rest of the contract has defaults.
        found = type(found.__name__, (found, Environment), {"__module__": found.__module__, "__doc__": found.__doc__})
    if "name" not in vars(found) or not found.name:
        found.name = name
    environment: type[Environment] = found
    return environment


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
