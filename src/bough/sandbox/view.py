"""What a sandbox shows of this machine: the Python installation and the libraries it is linked to, read-only."""

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
# Where the keeper's own modules are seen; folders without __init__ are packages too.
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
class View:
    """`views`: what is shown, and where. `links`: top-level links as the host has them. `hide`: for tracebacks."""

    python: str
    views: dict[str, str]
    links: dict[str, str]
    packages: list[str]
    hide: dict[str, str]


@cache
def view() -> View:
    """The view that goes with the Python that runs this."""
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable) or sys.executable)
    packages = [path for path in dict.fromkeys(map(sysconfig.get_path, ("purelib", "platlib"))) if Path(path).is_dir()]
    prefix = os.path.realpath(sys.base_prefix)
    shown = [*SYSTEM, *packages, python]
    if prefix.startswith(NIX):
        shown.append(NIX)
    elif prefix not in HOMES:
        shown.append(prefix)
    links = {path: str(Path(path).readlink()) for path in SYSTEM if Path(path).is_symlink()}
    paths = sorted(path for path in shown if path not in links and Path(path).exists())
    outer = [path for path in paths if not any(path != other and path.startswith(other + "/") for other in paths)]
    views = {path: path for path in dict.fromkeys(outer)} | {str(INSIDE): f"{PROGRAM}/bough/sandbox/inside"}
    hide = dict.fromkeys(packages, "site-packages") | {os.path.realpath(sysconfig.get_path("stdlib")): "python"}
    return View(python, views, links, packages, hide)


def covered(names: Iterable[str]) -> list[str]:
    """The folders of packages of these names in what is shown, which a sandbox can hide."""
    base = {"base": sys.base_prefix, "platbase": sys.base_prefix}
    own = [sysconfig.get_path(name, vars=base) for name in ("purelib", "platlib")]
    folders = dict.fromkeys([*view().packages, *own, *map(os.path.abspath, filter(None, sys.path))])
    paths = [str(Path(folder) / name) for folder in folders for name in names]
    return [path for path in paths if Path(path).is_dir() and any(path.startswith(f"{top}/") for top in view().views)]


def boot(module: str, folder: str) -> list[str]:
    """Options of Python that call `main` of one of the inside modules with the JSON that follows."""
    code = (
        f"import sys; sys.path.insert(0, {folder!r}); import json; "
        f"from bough.sandbox.inside.{module} import main; main(json.loads(sys.argv[1]))"
    )
    return ["-s", "-S", "-P", "-c", code]
