"""Messages on a stream of bytes: four bytes of length, then JSON."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

LENGTH = struct.Struct(">I")
MOST = 64 << 20


def pack(message: dict[str, Any]) -> bytes:
    """A message as bytes."""
    text = json.dumps(message).encode()
    return LENGTH.pack(len(text)) + text


def unpack(buffer: bytes | bytearray, most: int = MOST) -> dict[str, Any] | None:
    """The message in `buffer`; None if it is incomplete, ValueError if it is invalid."""
    if len(buffer) < LENGTH.size:
        return None
    length = LENGTH.unpack_from(buffer)[0]
    if length > most:
        raise ValueError(f"a message of {length} bytes")
    if len(buffer) < LENGTH.size + length:
        return None
    message = parse(bytes(buffer[LENGTH.size : LENGTH.size + length]))
    if len(buffer) > LENGTH.size + length:
        raise ValueError("more than a message")
    return message


def parse(text: bytes) -> dict[str, Any]:
    """Parses the JSON of a message; ValueError unless it is an object."""
    try:
        message = json.loads(text)
    except RecursionError as error:
        raise ValueError("too deep") from error
    if not isinstance(message, dict):
        raise ValueError("not an object")
    return message


def receive(file: int) -> dict[str, Any] | None:
    """Reads the next message from a blocking file; None at its end."""
    head = _exactly(file, LENGTH.size)
    if head is None:
        return None
    length = LENGTH.unpack(head)[0]
    text = _exactly(file, length) if length <= MOST else None
    return None if text is None else parse(text)


def send(file: int, message: dict[str, Any]) -> None:
    """Writes a complete message to a blocking file."""
    data = memoryview(pack(message))
    while data:
        data = data[os.write(file, data) :]


def _exactly(file: int, size: int) -> bytes | None:
    pieces = []
    while size:
        piece = os.read(file, min(size, 1 << 20))
        if not piece:
            return None
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
