"""Installs what the web environment needs, a Chromium and the pages, for `bough env setup web`.

In order: a browser that is there, the system's packages where this user may install them,
then a browser unpacked into the cache folder. Each is tried on a page before it counts.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path

from bough.environments import registry
from bough.environments.base import EnvironmentFailedError
from bough.errors import BoughError, InputError
from bough.files import build_once, cache_folder
from bough.worlds.web import browsers
from bough.worlds.web.actions import Action
from bough.worlds.web.browser import FOLDER, VARIABLE, Browser, find
from bough.worlds.web.page import ActionRefusedError, Page, html_folder

# The shell alone is enough and half the size; not every distribution has it as a package.
PACKAGES = ("chromium-headless-shell", "chromium")
UNPACKED = {
    "debian": ("the system's packages, without root", browsers.build_debian),
    f"npm-{browsers.NPM_VERSION}": ("npm's @sparticuz/chromium", browsers.build_npm),
    f"playwright-{browsers.PLAYWRIGHT_VERSION}": ("Playwright's headless shell", browsers.build_playwright),
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
    apt = registry.installer()
    if apt is None:
        yield registry.NOT_ALLOWED
    for package in PACKAGES if apt else ():
        yield f"Installing {package} …"
        assert apt is not None
        if not registry.install(apt, package):
            yield f"  not possible: apt-get could not install {package}"
        elif (path := find()) is not None and trouble(path) is None:
            return path
    for name, (title, build) in UNPACKED.items():
        yield f"Unpacking {title} …"
        try:
            return str(build_once(f"{FOLDER}/{name}", partial(_build, build=build)) / browsers.NAME)
        except BoughError as error:
            yield f"  not possible: {error}"
    raise BoughError(f"No Chromium can be installed here.\n{HOW_TO}")


def _build(folder: Path, *, build: Callable[[Path], None]) -> None:
    build(folder)
    if why := trouble(str(folder / browsers.NAME)):
        raise BoughError(f"it was unpacked, but it does not work: {why}")


def _forget(program: Path) -> None:
    """Removes a browser of ours that no longer works, so that it is unpacked again."""
    if program.name == browsers.NAME and program.parent.parent == cache_folder() / FOLDER:
        shutil.rmtree(program.parent, ignore_errors=True)


# Whether a browser can play: started with the environment's own flags, and one page played to its end.

TIMEOUT_S = 120.0
PAGE = "click-test"  # one button, and nothing else to know


def trouble(program: str) -> str | None:
    """Why this browser cannot play a page; None if it can."""
    try:
        # A program that lacks a library says so here, and nowhere else.
        done = subprocess.run(  # noqa: S603  the browser itself
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode != 0:
        complaint = done.stderr.decode(errors="replace").strip().splitlines()
        return complaint[-1] if complaint else f"its exit status is {done.returncode}"
    try:
        return asyncio.run(asyncio.wait_for(_play(program), TIMEOUT_S))
    except TimeoutError:
        return f"a page took longer than {TIMEOUT_S:.0f} s"
    except (EnvironmentFailedError, ActionRefusedError) as error:
        return str(error)


async def _play(program: str) -> str | None:
    browser = await Browser.start(program)
    try:
        page = await Page.open(browser)
        view = await page.start(PAGE, 0, "train")
        buttons = [line.number for line in view.lines if line.kind == "button"]
        view = await page.act(Action("click", {"element": buttons[0] if buttons else 1}))
        return None if view.done and view.reward == 1 else f"a click on the page {PAGE} did not reach its button"
    finally:
        browser.kill()
