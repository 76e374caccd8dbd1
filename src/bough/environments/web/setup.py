"""Gets what the web environment needs: a Chromium and the pages. Behind `bough env setup web`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

from bough.environments.web.browser import PROGRAMS, VARIABLE, find
from bough.environments.web.pages import html_folder
from bough.errors import BoughError, InputError

# The shell alone is enough and half the size; not every distribution has it as a package.
PACKAGES = ("chromium-headless-shell", "chromium")
HOW_TO = f"""Install a Chromium and try again:
  Debian, Ubuntu:  sudo apt-get install --no-install-recommends chromium-headless-shell   (or: chromium)
  Fedora:          sudo dnf install chromium-headless   (or: chromium)
  Arch:            sudo pacman -S chromium
  elsewhere:       put chrome-headless-shell on the PATH, or its path into {VARIABLE}"""


def setup() -> Iterator[str]:
    """Finds or installs a browser and checks that the pages are there; says what it does, line by line."""
    yield f"The pages are in {html_folder()}."
    if (path := find()) is not None:
        yield f"The browser is {path}."
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise InputError(
            f"No Chromium was found ({', '.join(PROGRAMS)}), and it can be installed only by root.\n{HOW_TO}"
        )
    for package in PACKAGES:
        yield f"Installing {package} …"
        if _install(package) and (path := find()) is not None:
            yield f"The browser is {path}."
            return
    raise BoughError(f"apt-get could not install a Chromium.\n{HOW_TO}")


def _install(package: str) -> bool:
    """Whether apt-get installed it; its lists may be missing or old."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--no-install-recommends", package]
    for command in (install, ["apt-get", "update"], install):
        done = subprocess.run(command, env=environment, capture_output=True, check=False)  # noqa: S603
        if command is install and done.returncode == 0:
            return True
    return False
