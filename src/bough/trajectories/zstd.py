"""Zstandard files as a row of frames: one whole frame a batch, so a torn end is a torn frame and no more."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import IO

import zstandard
from typing_extensions import Buffer


def pack(text: bytes) -> bytes:
    """One whole frame."""
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(text)


def unpack(file: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Pieces of text, each with the offset behind the last whole frame so far.

    A last frame that is cut off gives what can be had of it, then EOFError; damage is an OSError.
    """
    whole = seen = 0
    frame = zstandard.ZstdDecompressor().decompressobj()
    while data := file.read(1 << 18):
        seen += len(data)
        while data:
            try:
                text = frame.decompress(data)
            except zstandard.ZstdError as error:
                raise OSError(f"damaged Zstandard data: {error}") from None
            data = b""
            if frame.eof:
                data = frame.unused_data
                whole = seen - len(data)
                frame = zstandard.ZstdDecompressor().decompressobj()
            yield text, whole
    if whole < seen:
        raise EOFError("the last Zstandard frame is cut off")


def whole_size(file: IO[bytes]) -> int:
    """How many bytes the whole frames at the beginning take."""
    size = 0
    with contextlib.suppress(OSError, EOFError):
        for _, whole in unpack(file):
            size = whole
    return size


class TextStream(io.RawIOBase):
    """The text of a Zstandard file as a raw stream."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._pieces = unpack(file)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece[0]
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
