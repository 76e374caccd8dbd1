"""Where models, browsers and prepared examples are kept: complete or not at all, built once for all processes.

Kernels that torch and Triton compile are kept there too, by these libraries themselves.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bough.disk import put_in_place
from bough.errors import BoughError, InputError

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """`BOUGH_CACHE`, else `bough` in the user's cache folder."""
    if chosen := os.environ.get("BOUGH_CACHE"):
        return Path(chosen).expanduser().absolute()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bough"
    except RuntimeError:
        raise InputError("this user has no home folder; let BOUGH_CACHE name a folder for models and caches") from None


def keep_compiled_code() -> None:
    """Has torch and Triton keep compiled code in the cache: torch's own choice is a temporary folder.

    Folders that the user has chosen stay.
    """
    for variable, name in (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")):
        folder = cache_folder() / "compiled" / name
        if variable not in os.environ:
            with suppress(OSError):  # a cache that cannot be written: as without us
                folder.mkdir(parents=True, exist_ok=True)
                os.environ[variable] = str(folder)


def build_once(name: str, build: Callable[[Path], None]) -> Path:
    """The cache's folder `name`, such as `models/tiny`, which `build` fills if it is not there yet.

    `build` works in a draft folder beside the final one. The draft gets its name in one
    rename after its bytes are on the disk, so the folder, if it exists, is complete.
    A process that was killed leaves its draft behind; the next to build sweeps it away.
    """
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _build_alone(folder, build)
    except OSError as error:
        raise BoughError(
            f"{folder} cannot be made ({error}); free some space there, or let BOUGH_CACHE name another folder"
        ) from error
    return folder


def _build_alone(folder: Path, build: Callable[[Path], None]) -> None:
    """Build `folder` under a lock that the kernel releases with the process, however that ends."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        logger.warning("Waiting for another process that is making %s.", folder.name)
        lock.acquire()
    try:
        if folder.is_dir():
            return
        for leftover in folder.parent.glob(f".{folder.name}.*.draft"):
            shutil.rmtree(leftover, ignore_errors=True)
        # The process id keeps us clear of what a killed builder's own children may still be writing.
        draft = folder.with_name(f".{folder.name}.{os.getpid()}.draft")
        try:
            draft.mkdir()
            build(draft)
            put_in_place(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    finally:
        lock.release()
