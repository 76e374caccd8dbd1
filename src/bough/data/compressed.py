"""Compressed files, unpacked in small pieces so that memory use does not depend on what they contain.

Our own Zstandard files have one frame per batch, so that a torn end costs one frame at most.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import os
from collections.abc import Iterator
from typing import IO

import zstandard
from typing_extensions import Buffer

PIECE = 1 << 16
# Of Zstandard data, whose blocks of four bytes unpack to at most 128 KiB each: at most 4 MiB of text.
SMALL_PIECE = 128
# A header may ask for 4 GiB of memory. The limit of zstd itself without --long; xz -9 asks for 65 MiB.
MAX_MEMORY = 128 << 20
# Text shrinks to a tenth or a hundredth. A file that expands to more than both limits is not a data file.
MAX_UNPACKED, MAX_RATIO = 1 << 30, 1000
SUFFIXES = (".zst", ".gz", ".xz")


def pack(text: bytes) -> bytes:
    """One whole frame."""
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(text)


def unpack(file: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Pieces of text, each with the offset after the last whole frame so far.

    A last frame that is cut off gives its readable part, then EOFError; damage is an OSError.
    """
    seen = whole = 0
    data = b""
    while data := data or file.read(SMALL_PIECE):
        frame = zstandard.ZstdDecompressor(max_window_size=MAX_MEMORY).decompressobj()
        while not frame.eof:
            try:
                text = frame.decompress(data)
            except zstandard.ZstdError as error:
                raise OSError(f"damaged Zstandard data: {error}") from None
            seen += len(data)
            if text:
                yield text, whole
            data = frame.unused_data if frame.eof else file.read(SMALL_PIECE)
            if not data and not frame.eof:
                raise EOFError("the last Zstandard frame is cut off")
        seen -= len(data)
        whole = seen
        yield b"", whole


def whole_size(file: IO[bytes]) -> int:
    """Size in bytes of the complete frames at the beginning."""
    size = 0
    with contextlib.suppress(OSError, EOFError):
        for _, whole in unpack(file):
            size = whole
    return size


def _unpack_xz(file: IO[bytes]) -> Iterator[bytes]:
    """Pieces of text. Streams may follow each other, with zero bytes between them."""
    data, unpacker = b"", None
    while data := data or file.read(PIECE):
        data = data.lstrip(b"\0")
        if not data:
            continue
        unpacker = lzma.LZMADecompressor(memlimit=MAX_MEMORY)
        while not unpacker.eof:
            yield unpacker.decompress(data, PIECE)
            data = b""
            if unpacker.needs_input and not unpacker.eof and not (data := file.read(PIECE)):
                raise EOFError("the last stream of the .xz file is cut off")
        data = unpacker.unused_data
    if unpacker is None:
        raise EOFError("the .xz file is empty")


class Unpacked(io.RawIOBase):
    """The text of a compressed file as a raw stream. OSError where it is longer than its limit."""

    def __init__(self, file: io.BufferedReader, suffix: str) -> None:
        self._file, self._rest = file, memoryview(b"")
        self._left = max(MAX_UNPACKED, MAX_RATIO * os.fstat(file.fileno()).st_size)
        if suffix == ".zst":
            self._pieces: Iterator[bytes] = (piece for piece, _ in unpack(file))
        elif suffix == ".xz":
            self._pieces = _unpack_xz(file)
        else:
            source = gzip.GzipFile(fileobj=file)
            self._pieces = iter(lambda: source.read(PIECE), b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
            self._left -= len(piece)
            if self._left < 0:
                raise OSError(f"it unpacks to more than {MAX_RATIO} times its size; it is not a data file")
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
