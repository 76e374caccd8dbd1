"""From a name to an environment class.

household                      an entry point of an installed package, in the group "bough.environments"
my_package.worlds:Guess        a class of an importable module
worlds/guess.py:Guess          a class of a file
agent:my_agent.py:play         the tasks of a user's own agent function (`own_agent`)
gymnasium:FrozenLake-v1        another library's environment, through an adapter (`bough.environments.adapters`)

Bough's own environments are entry points like those of any other package.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from bough import given
from bough.config.code_names import is_code
from bough.config.environment import AGENT_PREFIX
from bough.environments.adapters.names import ADAPTERS, adapt
from bough.environments.base import Environment
from bough.environments.own_agent import own_agent
from bough.errors import InputError, describe_failure, did_you_mean

GROUP = "bough.environments"


def find(name: str) -> type[Environment]:
    """The environment class of that name, which the user gave. Raises InputError saying what was tried.

    A name read from a file goes to `find_listed`: this function runs the code that the name points to.
    """
    if name.startswith(AGENT_PREFIX):
        return _own_agent(name.removeprefix(AGENT_PREFIX))
    if not is_code(name):
        return find_listed(name)
    adapted = adapt(name)
    if adapted is None:
        adapted = _load(name, f"environment {name!r}", lambda value: inspect.isclass(value) and hasattr(value, "step"))
    return _environment(adapted, name)


def find_listed(name: str) -> type[Environment]:
    """The environment that an installed package registers under that name. Files may name only these."""
    if (handed_in := given.ENVIRONMENTS.get(name)) is not None:
        return _environment(handed_in, name)
    if not is_code(name) and (adapted := adapt(name)) is not None:
        return _environment(adapted, name)
    points = plugged_in()
    if not points:
        raise InputError(
            "no environment is registered, not even Bough's own: its installation is incomplete or older than its "
            "code; run pip install again (in a checkout: pip install -e .)"
        )
    if name.endswith(".py"):
        raise InputError(f"environment {name!r} is a file; name its class too: {name}:Class")
    if name not in points:
        raise InputError(
            f"there is no environment {name!r}{did_you_mean(name, points)} "
            "(your own: module:Class or path/to/file.py:Class); "
            f"of other libraries: {', '.join(one.form for one in ADAPTERS.values())}"
        )
    try:
        found = points[name].load()
    except Exception as error:  # a plug-in may raise anything
        what = f"environment {name!r} cannot be loaded: {points[name].value}"
        raise InputError(describe_failure(what, error)) from error
    return _environment(found, name)


def _own_agent(name: str) -> type[Environment]:
    function = given.AGENTS.get(name)
    if function is None:
        if not is_code(name):
            raise InputError(f"--agent {name}: name a function as module:function or path/to/file.py:function")
        function = _load(name, f"--agent {name}", inspect.isfunction)
    return own_agent(function, _record_name(name))


def plugged_in() -> dict[str, EntryPoint]:
    """The entry points of installed packages by name. Bough's own names cannot be taken over by another package."""
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value.startswith("bough.")))
    return {point.name: point for point in points}


def _load(name: str, shown: str, fits: Callable[[Any], bool]) -> Any:
    """What `name` points to. An error starts with `shown`, and suggests what `fits` in the same module."""
    # The last colon separates module and class; a Windows drive has one in front.
    place, _, attribute = name.rpartition(":")
    try:
        module = _module_of_file(Path(place)) if place.endswith(".py") else import_module(place)
    except InputError:
        raise
    except ModuleNotFoundError as error:
        scheme, _, rest = name.partition(":")
        if error.name == scheme and (close := get_close_matches(scheme, ADAPTERS, n=1)):
            raise InputError(f"{shown}: there is no module {scheme!r}; did you mean {close[0]}:{rest}?") from error
        raise InputError(describe_failure(f"{shown} cannot be loaded: {place}", error)) from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything, and a script may exit
        raise InputError(describe_failure(f"{shown} cannot be loaded: {place}", error)) from error
    if not hasattr(module, attribute):
        fitting = [key for key, value in vars(module).items() if fits(value) and not key.startswith("_")]
        raise InputError(f"{shown}: {place} has no {attribute!r}{did_you_mean(attribute, fitting)}")
    return getattr(module, attribute)


def _module_of_file(given: Path) -> ModuleType:
    path = given.resolve()
    if not path.is_file():
        raise InputError(f"{given}: there is no such file")
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
        raise InputError(f"environment {name!r} is of type {type(found).__name__}; it must be a class")
    if missing := [method for method in ("start", "step") if not callable(getattr(found, method, None))]:
        raise InputError(f"environment {name!r} has no method {' and no '.join(missing)}")
    if not issubclass(found, Environment):
        # A class with start and step is an environment; the rest of the contract has defaults.
        found = type(found.__name__, (found, Environment), {"__module__": found.__module__, "__doc__": found.__doc__})
    if "name" not in vars(found) or not found.name:
        found.name = _record_name(name)
    environment: type[Environment] = found
    return environment


def _record_name(name: str) -> str:
    """The name as records keep it: of an absolute path only the last two parts."""
    return str(Path(*Path(name).parts[-2:])) if Path(name).is_absolute() else name
