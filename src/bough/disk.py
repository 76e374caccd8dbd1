"""Files and folders that are whole or not there: written under another name, synced, renamed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from bough.errors import BoughError

# Reports and results; an evaluation of 100,000 episodes takes 20 MB.
MAX_JSON = 64 << 20


def write_json(path: Path, value: Any) -> None:
    """A small JSON file, readable by people."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # Half a character, such as in a file's name that is not UTF-8, is written as JSON's escape of it.
    write_atomically(path, text.encode("utf-8", "backslashreplace").decode())


def write_atomically(path: Path, text: str) -> None:
    """Writes the whole file or leaves the old one: a reader never sees a half. Its folder is made where it is not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        sync(beside)
        beside.rename(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            remove(beside)
        error.filename = error.filename or str(path)  # a full disk does not say where
        raise


def put_in_place(draft: Path, final: Path) -> None:
    """Gives a finished folder its name, in place of what had it before, which is whole until then."""
    for path in [*draft.rglob("*"), draft]:
        if not path.is_symlink():  # it is part of its folder, and may lead nowhere
            sync(path)
    old = final.with_name(f".{final.name}.old")
    remove(old)
    if final.exists() or final.is_symlink():
        final.rename(old)
    draft.rename(final)
    sync(final.parent)
    with contextlib.suppress(OSError):  # the new folder is in place; what is left of the old one harms nobody
        remove(old)


@contextlib.contextmanager
def drafting(draft: Path, final: Path) -> Iterator[None]:
    """For what writes `draft`, to become `final`. A failure of the disk is a BoughError, and the draft is removed."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(OSError):
            remove(draft)
        if isinstance(error, OSError):
            raise BoughError(f"{final}: cannot be written: {error.strerror or error}") from error
        if type(error).__name__ == "SafetensorError":  # not an OSError, and importing its class takes long
            raise BoughError(f"{final}: cannot be written: {error}") from error
        raise


def remove(path: Path) -> None:
    """Removes a file, or a folder with all that is in it. A link is removed, never what it points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)  # does not follow links inside
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Holds the lock file `path`. Where another process has it: waits, or raises BlockingIOError.

    The lock goes with the process; the file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(file)


def open_file(path: Path) -> BufferedReader:
    """A regular file, open for reading. A folder, a pipe or a device is an OSError: those block, or have no end."""
    _be_regular(path.stat(), path)
    # What the path names may have changed since: a pipe that is opened so does not block, and is refused below.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _be_regular(os.fstat(file), path)
        return os.fdopen(file, "rb")
    except BaseException:
        os.close(file)
        raise


def _be_regular(found: os.stat_result, path: Path) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_small(path: Path, most: int) -> str:
    """The text of a regular file of at most so many bytes. Raises OSError, or ValueError where it is not UTF-8."""
    with open_file(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most >> 10:,} KiB", str(path))
    return content.decode("utf-8")


def read_json(path: Path, most: int = MAX_JSON) -> Any:
    """What a JSON file holds. Raises OSError, or ValueError where it is not JSON."""
    try:
        return json.loads(read_small(path, most))
    except RecursionError:
        raise ValueError("the values are nested too deeply") from None


def sync(path: Path) -> None:
    """Forces a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
