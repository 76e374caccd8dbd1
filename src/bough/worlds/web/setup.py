"""Installs what the web environment needs, a Chromium and the pages, for `bough env setup web`.

In order: a browser that is there, the system's packages where this user may install them,
then a browser unpacked into the cache folder. Each is tried on a page before it counts.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from pathlib import Path

from bough.environments import registry
from bough.environments.base import EnvironmentFailedError
from bough.errors import BoughError, InputError
from bough.files import build_once, cache_folder
from bough.worlds.web.actions import Action
from bough.worlds.web.browser import FOLDER, UNPACKED, VARIABLE, Browser, find
from bough.worlds.web.page import ActionRefusedError, Page, html_folder

# The shell alone is enough and half the size; not every distribution has it as a package.
PACKAGES = ("chromium-headless-shell", "chromium")
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
        if Path(path).parent.parent == cache_folder() / FOLDER:  # unpack it again
            shutil.rmtree(Path(path).parent, ignore_errors=True)
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
    for name, (title, build) in WAYS.items():
        yield f"Unpacking {title} …"
        try:
            return str(build_once(f"{FOLDER}/{name}", partial(_build, build=build)) / UNPACKED)
        except BoughError as error:
            yield f"  not possible: {error}"
    raise BoughError(f"No Chromium can be installed here.\n{HOW_TO}")


def _build(folder: Path, *, build: Callable[[Path], None]) -> None:
    build(folder)
    if why := trouble(str(folder / UNPACKED)):
        raise BoughError(f"it was unpacked, but it does not work: {why}")


# Whether a browser can play: started with the environment's own flags, and one page played to its end.

TRIAL_TIMEOUT_S = 120.0
PAGE = "click-test"  # one button, and nothing else to know


def trouble(program: str) -> str | None:
    """Why this browser cannot play a page; None if it can."""
    try:
        # A program that lacks a library says so here, and nowhere else.
        done = subprocess.run(  # noqa: S603  the browser itself
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_TIMEOUT_S
        )
        if done.returncode != 0:
            complaint = done.stderr.decode(errors="replace").strip().splitlines()
            return complaint[-1] if complaint else f"its exit status is {done.returncode}"
        return asyncio.run(asyncio.wait_for(_play(program), TRIAL_TIMEOUT_S))
    except TimeoutError:
        return f"a page took longer than {TRIAL_TIMEOUT_S:.0f} s"
    except (OSError, subprocess.TimeoutExpired, EnvironmentFailedError, ActionRefusedError) as error:
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


# Debian's Chromium, unpacked into a folder: apt-get downloads and checks packages for any user.
# Which packages are missing is apt's own answer; installing them is all that needs root. Lists and archives lie in
# the folder too, so the system's own are neither needed nor touched.

TIMEOUT_S = 300.0


def build_debian(folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise BoughError("this system has no apt-get")
    own, root = folder / "apt", folder / "root"
    (own / "lists" / "partial").mkdir(parents=True)
    (own / "archives" / "partial").mkdir(parents=True)
    apt = ["apt-get", *registry.PATIENCE, "-o", "Debug::NoLocking=true", "-o", "APT::Sandbox::User="]
    apt += ["-o", f"Dir::State::Lists={own / 'lists'}", "-o", f"Dir::Cache={own}"]
    apt += ["-o", f"Dir::Cache::Archives={own / 'archives'}", "-o", "APT::Get::List-Cleanup=false"]
    _run([*apt, "update"])  # one bad source need not matter
    archives: list[Path] = []
    for package in PACKAGES:
        if not archives:
            said = _run([*apt, "install", "--yes", "--download-only", "--no-install-recommends", package])
            archives = sorted((own / "archives").glob("*.deb"))
    if not archives:
        raise BoughError(f"apt-get cannot download a Chromium: {said}")
    for archive in archives:
        _run(["dpkg-deb", "--extract", str(archive), str(root)])
    shutil.rmtree(own)
    home = root / "usr" / "lib" / "chromium"
    programs = [home / name for name in ("chromium-headless-shell", "headless_shell", "chromium")]
    program = next(filter(Path.is_file, programs), None)
    if program is None:
        raise BoughError(f"apt-get has no Chromium among its packages: {', '.join(path.name for path in archives)}")
    libraries = sorted({path.parent for path in root.rglob("*.so*")})
    write_launcher(folder, program, libraries, root / "usr" / "share" / "fonts")


def _run(command: list[str]) -> str:
    """Runs a command; the last line of its errors."""
    try:
        done = subprocess.run(  # noqa: S603  fixed commands
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise BoughError(f"{command[0]} took longer than {TIMEOUT_S:.0f} s") from None
    return (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]


# The headless shell of npm's @sparticuz/chromium: for Linux on x86_64, with its own libraries and fonts.
# It is made for machines that have neither. The archive is data here: downloaded, checked and unpacked; no npm and no
# JavaScript is run.

NPM_VERSION = "153.0.0"
ADDRESS = f"https://registry.npmjs.org/@sparticuz/chromium/-/chromium-{NPM_VERSION}.tgz"
SHA512 = (
    "8e2196a92bcf31dbb8f8ff538a562a011ef21063c41c8371fa50af13f36a34efc41d8cc5ff1d615222394fa8a8548b7b"
    "744cbb9fcf1bcb24f4be4f9d9ec810c0"
)
MOST_BYTES = 200 << 20


def build_npm(folder: Path) -> None:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ("x86_64", "AMD64"):
        raise BoughError(f"it is built for Linux on x86_64 only, and this is {platform.system()} on {machine}")
    try:
        import brotli
    except ImportError:
        raise BoughError("it needs the brotli package; install it with: pip install 'bough[web]'") from None
    # Libraries that draw are looked for beside the program.
    places = {"al2023.tar.br": "al2023", "fonts.tar.br": "fonts", "swiftshader.tar.br": "shell"}
    program = folder / "shell" / "headless_shell"
    program.parent.mkdir()
    with tarfile.open(fileobj=io.BytesIO(_download())) as package:
        for member in package:
            name = member.name.removeprefix("package/bin/")
            if name not in (*places, "chromium.br") or (file := package.extractfile(member)) is None:
                continue
            content = brotli.decompress(file.read())
            if name == "chromium.br":
                program.write_bytes(content)
                continue
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                if hasattr(tarfile, "data_filter"):
                    archive.extractall(folder / places[name], filter="data")
                else:  # Python 3.11 before 3.11.4
                    archive.extractall(folder / places[name])  # noqa: S202  the package's digest has been checked
    write_launcher(folder, program, [folder / "al2023" / "lib"], folder / "fonts")


def _download() -> bytes:
    end = time.monotonic() + TIMEOUT_S
    content = bytearray()
    try:
        with urllib.request.urlopen(ADDRESS, timeout=30) as answer:
            while (chunk := answer.read(1 << 20)) and len(content) <= MOST_BYTES:
                content += chunk
                if time.monotonic() > end:
                    raise BoughError(f"{ADDRESS} took longer than {TIMEOUT_S:.0f} s")
    except OSError as error:
        raise BoughError(f"{ADDRESS} cannot be read: {error}") from error
    found = hashlib.sha512(content).hexdigest()
    if found != SHA512:
        raise BoughError(f"{ADDRESS} is not the expected file: its SHA-512 is {found}, not {SHA512}")
    return bytes(content)


WAYS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "debian": ("the system's packages, without root", build_debian),
    f"npm-{NPM_VERSION}": ("npm's @sparticuz/chromium", build_npm),
}


def write_launcher(folder: Path, program: Path, libraries: Iterable[Path], fonts: Path) -> None:
    """The script that starts `program` with its libraries and fonts; the folder may be moved afterwards."""
    # Fonts of the system first, those that came with the browser after them.
    (folder / "fonts.conf").write_text(f"""\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir prefix="relative">{fonts.relative_to(folder)}</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
""")
    places = ":".join(f"$here/{path.relative_to(folder)}" for path in libraries)
    launcher = folder / UNPACKED
    launcher.write_text(f"""\
#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd -P)
export LD_LIBRARY_PATH="{places}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
export FONTCONFIG_FILE="$here/fonts.conf"
exec "$here/{program.relative_to(folder)}" "$@"
""")
    launcher.chmod(0o755)
    program.chmod(0o755)
