"""Sets up the best sandbox that this machine allows, for `bough env setup interpreter`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from bough.environments import registry
from bough.sandbox import group, isolation

PACKAGE = "bubblewrap"


def setup() -> Iterator[str]:
    """Installs bubblewrap if this user may, and reports which sandbox code will run in."""
    isolation.check_platform()
    if shutil.which("bwrap") is None:
        yield from _install()
    if (path := shutil.which("bwrap")) is not None:
        yield f"bubblewrap is {path}."
    yield f"Code runs in a sandbox of {isolation.choose()}."
    if group.available():
        yield "Each sandbox has a control group, which limits its memory and processes."


def _install() -> Iterator[str]:
    apt = registry.installer()
    if apt is None:
        yield f"{PACKAGE} is not installed; {registry.NOT_ALLOWED}. Ask for: sudo apt-get install {PACKAGE}"
        return
    yield f"Installing {PACKAGE} …"
    if not registry.install(apt, PACKAGE):
        yield f"apt-get could not install {PACKAGE}."
