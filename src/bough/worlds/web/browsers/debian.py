"""Debian's Chromium, unpacked into a folder: apt-get downloads and checks packages for any user.

Which packages are missing is apt's own answer; installing them is all that needs root.
Lists and archives lie in the folder too, so the system's own are neither needed nor touched.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bough.environments.packages import PATIENCE
from bough.errors import BoughError
from bough.worlds.web.browsers import launcher

PACKAGES = ("chromium-headless-shell", "chromium")
PROGRAMS = ("chromium-headless-shell", "headless_shell", "chromium")
TIMEOUT_S = 300.0


def build(folder: Path) -> None:
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
    launcher.write(folder, program, libraries=libraries, fonts=root / "usr" / "share" / "fonts")


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


def _run(command: list[str], *, check: bool = True) -> str:
    """The last line of what it complained of."""
    try:
        done = subprocess.run(  # noqa: S603  fixed commands
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise BoughError(f"{command[0]} took longer than {TIMEOUT_S:.0f} s") from error
    said = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
    if check and done.returncode != 0:
        raise BoughError(f"{command[0]} failed: {said}")
    return said
