"""The program `chromium` of a browser that was unpacked into a folder: it finds libraries and fonts beside itself."""

from __future__ import annotations

import hashlib
import io
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
import zipfile
from collections.abc import Iterable
from pathlib import Path

from bough.environments.registry import PATIENCE
from bough.errors import BoughError

NAME = "chromium"
FONTS = "fonts.conf"


def write(folder: Path, program: Path, *, libraries: Iterable[Path] = (), fonts: Path | None = None) -> None:
    """Writes the launcher for `program`. All paths are below `folder`, and the folder may be moved afterwards."""
    lines = ["#!/bin/sh", 'here=$(cd "$(dirname "$0")" && pwd -P)']
    if places := [_shown(path, folder) for path in libraries]:
        lines.append(f'export LD_LIBRARY_PATH="{":".join(places)}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"')
    if fonts is not None:
        (folder / FONTS).write_text(_configuration(fonts.relative_to(folder)))
        lines.append(f'export FONTCONFIG_FILE="$here/{FONTS}"')
    lines.append(f'exec "{_shown(program, folder)}" "$@"')
    launcher = folder / NAME
    launcher.write_text("\n".join(lines) + "\n")
    launcher.chmod(0o755)
    program.chmod(0o755)


def _shown(path: Path, folder: Path) -> str:
    return f"$here/{path.relative_to(folder)}"


def _configuration(fonts: Path) -> str:
    """Fonts of the system first, those that came with the browser after them."""
    return f"""\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir prefix="relative">{fonts}</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
"""


# Debian's Chromium, unpacked into a folder: apt-get downloads and checks packages for any user.
# Which packages are missing is apt's own answer; installing them is all that needs root. Lists and archives lie in
# the folder too, so the system's own are neither needed nor touched.

PACKAGES = ("chromium-headless-shell", "chromium")
PROGRAMS = ("chromium-headless-shell", "headless_shell", "chromium")
TIMEOUT_S = 300.0


def build_debian(folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise BoughError("this system has no apt-get")
    archives = _download(folder)
    root = folder / "root"
    for archive in archives:
        _run(["dpkg-deb", "--extract", str(archive), str(root)])
    shutil.rmtree(folder / "apt")
    home = root / "usr" / "lib" / "chromium"
    program = next((home / name for name in PROGRAMS if (home / name).is_file()), None)
    if program is None:
        raise BoughError(f"apt-get has no Chromium among its packages: {', '.join(path.name for path in archives)}")
    libraries = sorted({path.parent for path in root.rglob("*.so*")})
    write(folder, program, libraries=libraries, fonts=root / "usr" / "share" / "fonts")


def _download(folder: Path) -> list[Path]:
    """The archives of the first package that there is, and of all that it needs and the system lacks."""
    own = folder / "apt"
    (own / "lists" / "partial").mkdir(parents=True)
    (own / "archives" / "partial").mkdir(parents=True)
    apt = ["apt-get", *PATIENCE, "-o", "Debug::NoLocking=true", "-o", "APT::Sandbox::User="]
    apt += ["-o", f"Dir::State::Lists={own / 'lists'}", "-o", f"Dir::Cache={own}"]
    apt += ["-o", f"Dir::Cache::Archives={own / 'archives'}", "-o", "APT::Get::List-Cleanup=false"]
    _run([*apt, "update"], check=False)  # one bad source need not matter
    complaint = ""
    for package in PACKAGES:
        complaint = _run([*apt, "install", "--yes", "--download-only", "--no-install-recommends", package], check=False)
        if archives := sorted((own / "archives").glob("*.deb")):
            return archives
    raise BoughError(f"apt-get cannot download a Chromium: {complaint}")


def _run(command: list[str], environment: dict[str, str] | None = None, *, check: bool = True) -> str:
    """Runs a command and whatever it starts, for so long and no longer; the last line of what it complained of."""
    program = Path(command[0]).name
    with subprocess.Popen(  # noqa: S603  fixed commands
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            _, complaint = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise BoughError(f"{program} took longer than {TIMEOUT_S:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    said = complaint.strip().splitlines() or ["it gave no reason"]
    errors = [line for line in said if "error" in line.lower()]  # node ends with details of its errors
    if check and process.returncode != 0:
        raise BoughError(f"{program} failed: {(errors or said)[-1].strip()}")
    return said[-1]


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
    parts = _read(_download_npm())
    # Libraries that draw are looked for beside the program.
    places = {"al2023": folder / "al2023", "fonts": folder / "fonts", "swiftshader": folder / "shell"}
    for name, place in places.items():
        _unpack(brotli.decompress(parts[f"{name}.tar.br"]), place)
    program = folder / "shell" / "headless_shell"
    program.write_bytes(brotli.decompress(parts["chromium.br"]))
    write(folder, program, libraries=[folder / "al2023" / "lib"], fonts=folder / "fonts")


def _unpack(content: bytes, place: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(place, filter="data")
        else:  # Python 3.11 before 3.11.4
            archive.extractall(place)  # noqa: S202  the digest of the package has been checked


def _download_npm() -> bytes:
    end = time.monotonic() + TIMEOUT_S
    content = bytearray()
    try:
        with urllib.request.urlopen(ADDRESS, timeout=30) as answer:
            while chunk := answer.read(1 << 20):
                content += chunk
                if time.monotonic() > end:
                    raise BoughError(f"{ADDRESS} took longer than {TIMEOUT_S:.0f} s")
                if len(content) > MOST_BYTES:
                    break
    except OSError as error:
        raise BoughError(f"{ADDRESS} cannot be read: {error}") from error
    found = hashlib.sha512(content).hexdigest()
    if found != SHA512:
        raise BoughError(f"{ADDRESS} is not the expected file: its SHA-512 is {found}, not {SHA512}")
    return bytes(content)


def _read(archive: bytes) -> dict[str, bytes]:
    """The compressed parts by name."""
    parts = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as package:
        for member in package:
            if member.isfile() and member.name.startswith("package/bin/"):
                file = package.extractfile(member)
                assert file is not None
                parts[member.name.removeprefix("package/bin/")] = file.read()
    return parts


# Playwright's headless shell, from Playwright's own server: for Linux and macOS, on x86_64 and ARM.
# Its Python wheel contains the program that downloads it. The wheel is checked and unzipped into the folder, never
# installed. On Linux the shell needs libraries that a desktop has.

PLAYWRIGHT_VERSION = "1.65.0"
# Of the wheels for Linux on x86_64 and ARM, and for macOS on x86_64 and ARM.
SHA256 = (
    "e8e4d4a177bef2c2f2a17019febadded1c84cd1499b80f7100bb30ff20df7bad",
    "9072e6394fec07e56e17fec0ca271a7847dda4716db9d716291d1f7344f199bb",
    "78d2bd6127463552ddd890516e5eb4cc805559af474aa5ccf5b62e907972ce16",
    "229d6b184de3da7bf292cc38a63ee82aefb5c9f0a4233b1142f3ffb1cbd410ec",
)
PLAYWRIGHT_PROGRAMS = ("chrome-headless-shell", "headless_shell")


def build_playwright(folder: Path) -> None:
    driver = _driver(folder)
    environment = {
        **os.environ,
        "PLAYWRIGHT_BROWSERS_PATH": str(folder / "browsers"),
        "PLAYWRIGHT_DOWNLOAD_CONNECTION_TIMEOUT": "20000",
    }
    # Nothing but Playwright's program knows where its server keeps which build.
    command = [str(driver / "node"), str(driver / "package" / "cli.js"), "install", "chromium-headless-shell"]
    try:
        _run(command, environment)
    except BoughError:
        if not _shells(folder):  # it also downloads a video encoder, which is not needed here
            raise
    found = _shells(folder)
    if not found:
        raise BoughError("Playwright downloaded no chrome-headless-shell")
    write(folder, found[0])
    for part in (folder / "wheels", folder / "wheel"):
        shutil.rmtree(part)


def _shells(folder: Path) -> list[Path]:
    return [
        path for path in sorted((folder / "browsers").rglob("*")) if path.name in PLAYWRIGHT_PROGRAMS and path.is_file()
    ]


def _driver(folder: Path) -> Path:
    """The downloader out of the wheel."""
    wheels, requirement = folder / "wheels", folder / "requirements.txt"
    hashes = " ".join(f"--hash=sha256:{digest}" for digest in SHA256)
    requirement.write_text(f"playwright=={PLAYWRIGHT_VERSION} {hashes}\n")
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check"]
    options += ["--require-hashes", "--requirement", str(requirement), "--dest", str(wheels)]
    _run([sys.executable, "-m", "pip", "download", *options])
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "wheel")  # noqa: S202  a zip file, whose names are kept inside
    driver = folder / "wheel" / "playwright" / "driver"
    (driver / "node").chmod(0o755)
    return driver
