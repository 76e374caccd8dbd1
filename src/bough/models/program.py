"""A module run as a program of its own, so that its output, its settings and its memory stay there."""

from __future__ import annotations

import os
import subprocess
import sys

from bough.errors import BoughError


def run_program(module: str, *arguments: str, **environment: str) -> None:
    """Runs `python -m module`. Raises BoughError with the last line it said where it fails."""
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
