"""The samples of an inspect_ai log: a .eval file, which is a ZIP archive, or one .json object.

An archive has `header.json` and `samples/ID_epoch_N.json`; one sample at a time is in memory. A JSON
log is read as a whole. Nothing that a log contains is executed.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from pydantic_core import from_json
from typing_extensions import Buffer

from bough.errors import RowError
from bough.trajectories import zstd

# What inspect's other readers know as a log.
HEADER, START, SAMPLES = "header.json", "_journal/start.json", "samples/"
ZSTANDARD = 93  # the number of the method in ZIP; Python's zipfile does not know it before 3.14
# What Python's zipfile unpacks step by step. It unpacks bzip2 and LZMA at once, however large the result.
PYTHON_UNPACKS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# The fixed part of the head of each entry, before its name.
LOCAL_HEADER = 30
MAX_JSON_LOG = 1 << 30
LOG = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"status"\s*:\s*"')
Sample = tuple[int, dict[str, Any] | RowError]


def is_json_log(begin: bytes) -> bool:
    """Whether a JSON file begins as a log does."""
    return LOG.match(begin) is not None


def json_samples(file: IO[bytes]) -> Iterator[Sample]:
    """The samples of a JSON log."""
    text = file.read(MAX_JSON_LOG + 1)
    if len(text) > MAX_JSON_LOG:
        raise RowError("too_large", f"the log is larger than {MAX_JSON_LOG >> 30} GiB; write it as .eval (log_format)")
    try:
        log = from_json(text)
    except ValueError as error:
        raise RowError("not_json", f"the log is not complete JSON: {error}") from None
    samples = log.get("samples") if isinstance(log, dict) else None
    if not isinstance(samples, list):
        raise RowError("missing_field", 'the log has no "samples"; was it written with log_samples off?')
    for number, sample in enumerate(samples, 1):
        yield number, {"eval": log.get("eval") or {}, "sample": sample}


def archive_samples(file: IO[bytes], longest: int, most: int) -> Iterator[Sample]:
    """The samples of a .eval file, in the order in which they were written.

    None is larger than `longest` bytes, all together not larger than `most`.
    """
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile:
        raise RowError("damaged", "not a complete .eval file: its ZIP archive has no table of contents") from None
    entries = {entry.filename: entry for entry in archive.infolist()}
    head = next((entries[name] for name in (HEADER, START) if name in entries), None)
    samples = [entry for name, entry in entries.items() if name.startswith(SAMPLES) and name.endswith(".json")]
    if head is None:
        listed = ", ".join(list(entries)[:3]) or "nothing"
        raise RowError("damaged", f"not an inspect_ai log: the archive contains {listed:.120}, not {HEADER}")
    entry_reader = _Entries(archive, file, longest, most)
    begin = entry_reader.parsed(head)
    evaluated = begin.get("eval") if isinstance(begin, dict) else begin
    for number, entry in enumerate(samples, 1):
        found = entry_reader.parsed(entry)
        if isinstance(found, RowError):
            yield number, found
        else:
            yield number, {"eval": evaluated if isinstance(evaluated, dict) else {}, "sample": found}


@dataclass
class _Entries:
    """The contents of an archive, within limits: its own sizes may be wrong, and its entries may overlap."""

    archive: zipfile.ZipFile
    file: IO[bytes]
    longest: int
    left: int

    def parsed(self, entry: zipfile.ZipInfo) -> Any:
        """The JSON value of an entry, or what is wrong with it. Raises RowError for an archive that is a bomb."""
        try:
            text = self._unpacked(entry)
            self.left -= len(text)
            if self.left >= 0 and len(text) <= self.longest:
                return from_json(text)
        except (OSError, EOFError, ValueError, zlib.error, NotImplementedError, RuntimeError, zipfile.BadZipFile) as e:
            return RowError("damaged", f"{entry.filename} cannot be read: {e}")
        if self.left < 0:
            raise RowError("damaged", "it unpacks to far more than its size; it is not a data file")
        return RowError("too_large", f"{entry.filename} is larger than {self.longest >> 20} MiB")

    def _unpacked(self, entry: zipfile.ZipInfo) -> bytes:
        """The content of an entry, at most one byte more than `longest`."""
        if entry.compress_type in PYTHON_UNPACKS:
            with self.archive.open(entry) as content:
                return content.read(self.longest + 1)
        if entry.compress_type != ZSTANDARD:
            raise NotImplementedError(f"compression method {entry.compress_type} is not one that inspect_ai writes")
        file = self.file
        file.seek(entry.header_offset)
        head = file.read(LOCAL_HEADER)
        if len(head) < LOCAL_HEADER or head[:4] != b"PK\x03\x04":
            raise OSError("its header is absent")
        file.seek(int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little"), 1)
        text = bytearray()
        for piece, _ in zstd.unpack(io.BufferedReader(_Piece(file, entry.compress_size))):
            text += piece
            if len(text) > self.longest:
                break
        return bytes(text)


class _Piece(io.RawIOBase):
    """The next `size` bytes of a file as a file of its own."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        data = self._file.read(min(len(view), self._left))
        view[: len(data)] = data
        self._left -= len(data)
        return len(data)
