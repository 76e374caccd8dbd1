"""Zstandard files as a sequence of frames, one per batch, so that a torn end costs one frame at most.

A file is unpacked in small pieces. A block of four bytes unpacks to at most 128 KiB of text, so
memory use does not depend on the content of the file.
"""

from __future__ import annotations

import contextlib
import io
import lzma
from collections.abc import Iterator
from typing import IO

import zstandard
from typing_extensions import Buffer

# At most 4 MiB of text each.
SMALL_PIECE = 128
# The limit of zstd itself without --long; the window is kept in memory while a frame is read.
MAX_WINDOW = 128 << 20


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
        frame = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj()
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


class ZstdStream(io.RawIOBase):
    """The text of a Zstandard file as a raw stream."""

    def __init__(self, file: IO[bytes]) -> None:
        self._pieces = unpack(file)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece[0])
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


# The text of an .xz file as a raw stream, with a limit on the memory that its header may request.

# xz -9 asks for 65 MiB; a header may ask for 4 GiB.
MAX_MEMORY = 128 << 20
PIECE = 1 << 16


class XzStream(io.RawIOBase):
    """Unpacks as much as is requested. Damage is an LZMAError, a missing end an EOFError."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._unpacker = _unpacker()
        self._data = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        while view:
            if self._unpacker.eof and not self._next_stream():
                return 0
            if self._unpacker.needs_input and not self._data:
                self._data = self._file.read(PIECE)
                if not self._data:
                    raise EOFError("the file ended before its end-of-stream marker")
            text = self._unpacker.decompress(self._data, max_length=len(view))
            self._data = b""
            if text:
                view[: len(text)] = text
                return len(text)
        return 0

    def _next_stream(self) -> bool:
        """Streams may follow each other, with zero bytes between them."""
        self._data = self._unpacker.unused_data.lstrip(b"\0")
        while not self._data:
            piece = self._file.read(PIECE)
            if not piece:
                return False
            self._data = piece.lstrip(b"\0")
        self._unpacker = _unpacker()
        return True


def _unpacker() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=MAX_MEMORY)
