"""What workers are made from, as bytes: also classes that no other machine could import."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from bough.cluster.connection import import_ray
from bough.cluster.worker import WorkerSpec
from bough.errors import OURS, PACKAGES, STANDARD_LIBRARY, InputError, exception_line


def pack(spec: WorkerSpec) -> bytes:
    """The bytes that `Worker` reads. InputError where something in it cannot be sent to another process.

    Installed packages are named, and the nodes must have them. The user's own modules travel themselves: that of
    the environment or agent function, and those in the same folder.
    """
    name = spec.environment_class.name or spec.environment_class.__name__
    return pack_code(spec, [spec.environment_class], name)


def pack_code(thing: Any, code: Iterable[Any], name: str) -> bytes:
    """The bytes of `thing` with the user's modules that the classes and functions `code` need; `name` is for errors."""
    import_ray()
    from ray import cloudpickle

    with _by_value(cloudpickle, _own_modules(code)):
        try:
            packed: bytes = cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]
        except Exception as error:  # whatever the user's objects raise
            raise InputError(
                f"{name} cannot be sent to the workers of a cluster ({exception_line(error)}); keep what cannot be "
                "pickled, such as connections and locks, out of its module and create it in __init__ or start"
            ) from error
    return packed


@contextmanager
def _by_value(cloudpickle: Any, modules: list[ModuleType]) -> Iterator[None]:
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _own_modules(code: Iterable[Any]) -> list[ModuleType]:
    """The user's modules that classes and functions need. Cloudpickle itself takes care of `__main__`."""
    names = {
        getattr(part, "__module__", None)
        for one in code
        for part in (*getattr(one, "__mro__", (one,)), getattr(one, "function", None))  # of an agent function's class
    }
    own = [module for name in names if name and (module := sys.modules.get(name)) is not None and _is_own(module)]
    folders = {_file(module).parent for module in own}
    beside = [module for module in list(sys.modules.values()) if _is_own(module) and _file(module).parent in folders]
    return [module for module in beside if module.__name__ != "__main__"]


def _is_own(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return bool(file) and not str(Path(str(file)).resolve()).startswith((OURS, STANDARD_LIBRARY, *PACKAGES))


def _file(module: ModuleType) -> Path:
    return Path(str(module.__file__)).resolve()
