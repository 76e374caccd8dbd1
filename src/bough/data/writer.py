"""Appends records to a file so that a kill at any moment loses nothing that was reported as written.

Records are buffered and written in batches: one write of whole lines, then fsync. What
`written` counts is on the disk. A `.zst` file gets one complete Zstandard frame per batch.
A file has one writer at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, Literal, Self

from pydantic import Field
from pydantic_core import from_json, to_json

from bough.config.base import setting
from bough.config.groups import ReportConfig
from bough.data import bough, compressed
from bough.data.base import Format, Sample
from bough.data.reader import Problem, Reader, SourceConfig
from bough.errors import BoughError, InputError, RowError
from bough.files import open_own, replacing, sync, unlock
from bough.ledger import plural


class ConvertConfig(ReportConfig):
    """Converts a data file to another format."""

    source: SourceConfig
    to: str = Field(
        "bough",
        description="the format to write: bough, trl, openai, sharegpt, knowlyr-sft, knowlyr-dpo or knowlyr-grpo",
    )
    output: Path = setting(short="-o", description="the file to write: .jsonl or .jsonl.zst")
    on_error: Literal["stop", "skip"] = Field(
        "stop", description="bad rows: stop lists them all and writes nothing, skip drops and counts them"
    )
    overwrite: bool = Field(False, description="replace the output file if it exists")


ENDINGS = (".jsonl.zst", ".jsonl")


class Writer:
    """Appends records to one `.jsonl` or `.jsonl.zst` file, in Bough's own format by default."""

    def __init__(
        self, path: str | Path, *, format: Format = bough.FORMAT, batch: int = 64, batch_s: float = 1.0
    ) -> None:
        assert format.write is not None, f"{format.name} cannot be written"
        self.path = Path(path)
        self.write_row = format.write
        self.batch, self.batch_s = batch, batch_s
        self.written = 0
        self._packed = self.path.suffix == ".zst"
        self._buffer: list[bytes] = []
        self._file = _open_locked(self.path)
        self._flushed_at = time.monotonic()
        self.torn_bytes = self._cut_torn_end()

    def write(self, record: Sample) -> None:
        """Adds a record to the batch; flushes when the batch is full or old.

        A record that is not JSON (text that is not Unicode, values of other types) is a RowError; nothing is added.
        """
        try:
            line = to_json(self.write_row(record)) + b"\n"
        except (ValueError, RecursionError) as error:
            raise RowError("not_json", f"it cannot be written as JSON: {error}") from None
        self._buffer.append(line)
        if len(self._buffer) >= self.batch or time.monotonic() - self._flushed_at >= self.batch_s:
            self.flush()

    def flush(self) -> None:
        """Writes all records so far to the disk. On failure the file is unchanged and the batch is kept."""
        if self._buffer:
            size = os.fstat(self._file).st_size
            try:
                text = b"".join(self._buffer)
                _write_all(self._file, compressed.pack(text) if self._packed else text)
                os.fsync(self._file)
            except OSError as error:
                os.ftruncate(self._file, size)
                raise BoughError(
                    f"{self.path}: cannot write ({error.strerror}); "
                    f"{plural(self.written, 'record is', 'records are')} safe"
                ) from error
            self.written += len(self._buffer)
            self._buffer.clear()
        self._flushed_at = time.monotonic()

    def discard(self) -> None:
        """Forgets the records that are not on the disk yet."""
        self._buffer.clear()

    def close(self) -> None:
        if self._file >= 0:
            try:
                self.flush()
            finally:
                unlock(self._file)
                self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut_torn_end(self) -> int:
        """Removes the remains of an interrupted batch (it was never reported as written)."""
        size = os.fstat(self._file).st_size
        with self.path.open("rb") as file:
            whole = compressed.whole_size(file) if self._packed else _whole_lines(file, size)
            file.seek(whole)
            rest = b"" if self._packed else file.read()
        with contextlib.suppress(ValueError):
            from_json(rest)
            # A line that lacks only its newline, as some editors write it.
            _write_all(self._file, b"\n")
            return 0
        if whole < size:
            os.ftruncate(self._file, whole)
            os.fsync(self._file)
        return size - whole


def check_output(output: Path, overwrite: bool) -> None:
    """Raises InputError for an unusable output before any work is done."""
    if not output.name.endswith(ENDINGS):
        raise InputError(f"{output}: the name must end in .jsonl or .jsonl.zst")
    if output.exists() and not overwrite:
        raise InputError(f"{output} exists; give another file, or overwrite it")


def _open_locked(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open_own(path)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"{path.parent}: this is a file; give a folder") from None
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be opened for writing: {said}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise InputError(f"{path}: another process is writing it; wait for it, or give another file") from None
    sync(path.parent)
    return file


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _whole_lines(file: BinaryIO, size: int, step: int = 1 << 16) -> int:
    """The offset after the last newline."""
    for begin in range((size - 1) // step * step, -1, -step) if size else ():
        file.seek(begin)
        at = file.read(step).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
    return 0


# Writes a data file in another format: the whole file, or nothing.


class NotConvertedError(Exception):
    """No file was written: `bad` rows stopped the conversion, or, if 0, there was no row to write."""

    def __init__(self, bad: int) -> None:
        super().__init__(bad)
        self.bad = bad


def convert(
    config: ConvertConfig,
    target: Format,
    on_problem: Callable[[Problem], None],
    each: Callable[[Reader], Iterable[Sample]] = iter,
) -> int:
    """Writes the records of the settings' file as `target`; returns the number written.

    `on_problem` gets every row that cannot be read or written. `each` iterates over the
    records, for a progress bar. Raises NotConvertedError where nothing is written.
    """
    bad = 0

    def report(problem: Problem) -> None:
        nonlocal bad
        bad += problem.reason != "torn"  # a line cut off by a crash never stops the reading
        on_problem(problem)

    reader = Reader(config.source.file, format=config.source.format, on_error="skip", on_problem=report)
    with replacing(config.output) as path, Writer(path, format=target, batch=1024) as writer:
        for sample in each(reader):
            try:
                writer.write(sample)
            except RowError as error:
                report(Problem(reader.place.file, reader.place.line, error.reason, str(error)))
        writer.flush()
        stopped = bad if config.on_error == "stop" else 0
        if stopped or not writer.written:
            raise NotConvertedError(stopped)
    return writer.written
