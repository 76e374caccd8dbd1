"""The text of an .xz file as a raw stream, with a limit on the memory that its header may request."""

from __future__ import annotations

import io
import lzma
from typing import IO

from typing_extensions import Buffer

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
