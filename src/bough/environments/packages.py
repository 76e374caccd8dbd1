"""Packages of the operating system: installed by apt-get as root, or through sudo where it asks for no password."""

from __future__ import annotations

import os
import shutil
import subprocess

# A server that does not answer costs seconds; another program that holds apt's lock is waited for.
PATIENCE = (
    "-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20", "-o", "Acquire::Retries=1",
    "-o", "DPkg::Lock::Timeout=120",
)  # fmt: skip
NOT_ALLOWED = "apt-get installs packages only for root, or through sudo without a password"


def installer() -> list[str] | None:
    """The start of an apt-get command that may install packages here; None where there is none."""
    if shutil.which("apt-get") is None:
        return None
    if os.geteuid() == 0:
        return ["apt-get", *PATIENCE]
    sudo = ["sudo", "-n", "apt-get"]
    if shutil.which("sudo") is not None and _succeeds([*sudo, "--version"]):
        return [*sudo, *PATIENCE]
    return None


def install(apt: list[str], package: str) -> bool:
    """Whether the package was installed; its lists may be missing or old."""
    command = [*apt, "install", "--yes", "--no-install-recommends", package]
    if _succeeds(command):
        return True
    _succeeds([*apt, "update"])
    return _succeeds(command)


def _succeeds(command: list[str]) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(  # noqa: S603  fixed commands
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return done.returncode == 0
