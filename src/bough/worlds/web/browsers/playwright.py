"""Playwright's headless shell, from Playwright's own server: for Linux and macOS, on x86_64 and ARM.

Its Python wheel contains the program that downloads it. The wheel is checked and unzipped
into the folder, never installed. On Linux the shell needs libraries that a desktop has.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

from bough.errors import BoughError
from bough.worlds.web.browsers import launcher

VERSION = "1.65.0"
# Of the wheels for Linux on x86_64 and ARM, and for macOS on x86_64 and ARM.
SHA256 = (
    "e8e4d4a177bef2c2f2a17019febadded1c84cd1499b80f7100bb30ff20df7bad",
    "9072e6394fec07e56e17fec0ca271a7847dda4716db9d716291d1f7344f199bb",
    "78d2bd6127463552ddd890516e5eb4cc805559af474aa5ccf5b62e907972ce16",
    "229d6b184de3da7bf292cc38a63ee82aefb5c9f0a4233b1142f3ffb1cbd410ec",
)
PROGRAMS = ("chrome-headless-shell", "headless_shell")
TIMEOUT_S = 300.0


def build(folder: Path) -> None:
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
    launcher.write(folder, found[0])
    for part in (folder / "wheels", folder / "wheel"):
        shutil.rmtree(part)


def _shells(folder: Path) -> list[Path]:
    return [path for path in sorted((folder / "browsers").rglob("*")) if path.name in PROGRAMS and path.is_file()]


def _driver(folder: Path) -> Path:
    """The downloader out of the wheel."""
    wheels, requirement = folder / "wheels", folder / "requirements.txt"
    hashes = " ".join(f"--hash=sha256:{digest}" for digest in SHA256)
    requirement.write_text(f"playwright=={VERSION} {hashes}\n")
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check"]
    options += ["--require-hashes", "--requirement", str(requirement), "--dest", str(wheels)]
    _run([sys.executable, "-m", "pip", "download", *options], dict(os.environ))
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as archive:
        archive.extractall(folder / "wheel")
    driver = folder / "wheel" / "playwright" / "driver"
    (driver / "node").chmod(0o755)
    return driver


def _run(command: list[str], environment: dict[str, str]) -> None:
    """Runs a command and whatever it starts, for so long and no longer."""
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
            raise BoughError(f"{Path(command[0]).name} took longer than {TIMEOUT_S:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        said = complaint.strip().splitlines() or ["it gave no reason"]
        errors = [line for line in said if "error" in line.lower()]  # node ends with details of its errors
        raise BoughError(f"{Path(command[0]).name} failed: {(errors or said)[-1].strip()}")
