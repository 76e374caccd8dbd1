"""What is visible of this machine in a sandbox: the Python installation and its libraries, read-only."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

INSIDE = Path(__file__).parent / "inside"
SYSTEM = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
# Where the keeper's own modules are mounted; folders without __init__ are packages too.
PROGRAM = "/bough"
SCRATCH = ("/tmp", "/dev/shm")  # noqa: S108  the sandbox's own, empty and small
HOMES = ("/usr", "/usr/local")
NIX = "/nix/store"

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": SCRATCH[0],
    "LANG": "C.UTF-8",
    "USER": "sandbox",
    "PYTHONHASHSEED": "0",  # the same program gives the same answer
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class SandboxView:
    """The visible files, by their paths on the host; `inside` gives the path in the sandbox.

    `views`: host paths and where they are mounted. `links`: symbolic links as on the host.
    `hide`: replacements of paths in tracebacks. `environment`: variables that Python needs
    if it is mounted at another path than it was installed at.
    """

    python: str
    views: dict[str, str]
    links: dict[str, str]
    packages: list[str]
    hide: dict[str, str]
    environment: dict[str, str]

    def inside(self, path: str) -> str:
        """The path inside the sandbox of a visible host path."""
        for source, place in self.views.items():
            if _within(path, source):
                return place + path[len(source) :]
        return path


@cache
def view() -> SandboxView:
    """The view for the running Python."""
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable) or sys.executable)
    packages = [path for path in dict.fromkeys(map(sysconfig.get_path, ("purelib", "platlib"))) if Path(path).is_dir()]
    prefix = os.path.realpath(sys.base_prefix)
    stdlib = os.path.realpath(sysconfig.get_path("stdlib"))
    shown, links = libraries()
    shown += [*packages, python]
    if prefix.startswith(NIX):
        shown.append(NIX)
    elif prefix not in HOMES:
        shown.append(prefix)
    outer = [path for path in sorted(set(shown)) if not any(path != other and _within(path, other) for other in shown)]
    views = {path: _place(path) for path in outer} | {str(INSIDE): f"{PROGRAM}/bough/sandbox/inside"}
    links = {link: target for link, target in links.items() if not any(_within(link, path) for path in outer)}
    hide = dict.fromkeys(packages, "site-packages") | {stdlib: "python"}
    # Its own library may be looked for where it was installed.
    moved = {"LD_LIBRARY_PATH": f"{_place(prefix)}/lib"} if prefix in outer and _place(prefix) != prefix else {}
    return SandboxView(python, views, links, packages, hide, moved)


def libraries(root: str = "") -> tuple[list[str], dict[str, str]]:
    """The system's libraries below `root`, and the symbolic links to them; every link ends at a visible path."""
    shown: list[str] = []
    links: dict[str, str] = {}
    waiting = [*SYSTEM]
    while waiting:
        path = waiting.pop(0)
        there = Path(root + path)
        if there.is_symlink() and path not in links:
            links[path] = str(there.readlink())
            target = os.path.normpath(Path(path).parent / links[path])
            waiting += [target] * (target != "/")
        elif there.exists() and not there.is_symlink() and path not in shown:
            shown.append(path)
    return shown, links


def _place(path: str) -> str:
    """The path inside: the same, unless the sandbox's own scratch folders would cover it."""
    return f"{PROGRAM}/shown{path}" if any(_within(path, folder) for folder in SCRATCH) else path


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def covered(names: Iterable[str]) -> list[str]:
    """Where a sandbox would see packages of these names: the folders to mount something else over."""
    base = {"base": sys.base_prefix, "platbase": sys.base_prefix}
    own = [sysconfig.get_path(name, vars=base) for name in ("purelib", "platlib")]
    folders = dict.fromkeys([*view().packages, *own, *map(os.path.abspath, filter(None, sys.path))])
    paths = [str(Path(folder) / name) for folder in folders for name in names]
    tops = tuple(f"{top}/" for top in view().views)
    return [view().inside(path) for path in paths if Path(path).is_dir() and path.startswith(tops)]


def boot(module: str, folder: str) -> list[str]:
    """Options of Python that call `main` of one of the inside modules with the JSON that follows."""
    code = (
        f"import sys; sys.path.insert(0, {folder!r}); import json; "
        f"from bough.sandbox.inside.{module} import main; main(json.loads(sys.argv[1]))"
    )
    return ["-s", "-S", "-P", "-c", code]
