"""Installs what the web environment needs, a Chromium and the pages, for `bough env setup web`.

In order: a browser that is there, the system's packages where this user may install them,
then a browser unpacked into the cache folder. Each is tried on a page before it counts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path

from bough.cache import build_once, cache_folder
from bough.environments import packages
from bough.errors import BoughError, InputError
from bough.worlds.web.browser import FOLDER, VARIABLE, find
from bough.worlds.web.browsers import debian, launcher, npm, playwright
from bough.worlds.web.pages import html_folder
from bough.worlds.web.trial import trouble

# The shell alone is enough and half the size; not every distribution has it as a package.
PACKAGES = ("chromium-headless-shell", "chromium")
UNPACKED = {
    "debian": ("the system's packages, without root", debian.build),
    f"npm-{npm.VERSION}": ("npm's @sparticuz/chromium", npm.build),
    f"playwright-{playwright.VERSION}": ("Playwright's headless shell", playwright.build),
}
HOW_TO = f"""Install a Chromium and try again:
  Debian, Ubuntu:  sudo apt-get install --no-install-recommends chromium-headless-shell   (or: chromium)
  Fedora:          sudo dnf install chromium-headless   (or: chromium)
  Arch:            sudo pacman -S chromium
  macOS:           brew install --cask chromium, and its path into {VARIABLE}
  elsewhere:       put chrome-headless-shell on the PATH, or its path into {VARIABLE}"""


def setup() -> Iterator[str]:
    """Finds or installs a browser and checks that the pages are there; reports line by line."""
    yield f"The pages are in {html_folder()}."
    path = find()
    if path is not None and (why := trouble(path)) is not None:
        if os.environ.get(VARIABLE):
            raise InputError(f"{VARIABLE} is {path}, which does not work: {why}")
        yield f"{path} does not work: {why}"
        _forget(Path(path))
        path = None
    if path is None:
        path = yield from _get()
    yield f"The browser is {path}."


def _get() -> Generator[str, None, str]:
    """Installs or unpacks a browser that works; reports why each way that fails does."""
    apt = packages.installer()
    if apt is None:
        yield packages.NOT_ALLOWED
    for package in PACKAGES if apt else ():
        yield f"Installing {package} …"
        assert apt is not None
        if not packages.install(apt, package):
            yield f"  not possible: apt-get could not install {package}"
        elif (path := find()) is not None and trouble(path) is None:
            return path
    for name, (title, build) in UNPACKED.items():
        yield f"Unpacking {title} …"
        try:
            return str(build_once(f"{FOLDER}/{name}", partial(_build, build=build)) / launcher.NAME)
        except BoughError as error:
            yield f"  not possible: {error}"
    raise BoughError(f"No Chromium can be installed here.\n{HOW_TO}")


def _build(folder: Path, *, build: Callable[[Path], None]) -> None:
    build(folder)
    if why := trouble(str(folder / launcher.NAME)):
        raise BoughError(f"it was unpacked, but it does not work: {why}")


def _forget(program: Path) -> None:
    """Removes a browser of ours that no longer works, so that it is unpacked again."""
    if program.name == launcher.NAME and program.parent.parent == cache_folder() / FOLDER:
        shutil.rmtree(program.parent, ignore_errors=True)
