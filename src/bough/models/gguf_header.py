"""The head of a GGUF file: what it says about the model, and where its tensors are.

Read strictly, because such files come from anywhere: counts, lengths and offsets are checked
against the size of the file before anything is allocated for them.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bough.disk import open_file
from bough.errors import InputError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_COUNT = 1 << 17  # of keys, and of tensors
MAX_DIMENSIONS = 4
MAX_STRING = 1 << 24
STRING, ARRAY = 8, 9
# Numbers by their type in GGUF; 7 is true or false.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True)
class TensorInfo:
    """Shape as torch has it (rows first), type, and place in the file."""

    shape: tuple[int, ...]
    type: int
    start: int
    num_bytes: int


@dataclass(frozen=True)
class Header:
    """Everything but the tensors' numbers."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]

    @property
    def architecture(self) -> str:
        found = self.metadata.get("general.architecture")
        return found if isinstance(found, str) else ""

    def key(self, name: str, default: Any = None) -> Any:
        """The value of `ARCHITECTURE.name`."""
        return self.metadata.get(f"{self.architecture}.{name}", default)


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF files do."""
    try:
        with open_file(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_header(path: Path) -> Header:
    """The head of a file. Raises InputError for one that is damaged, cut off or not GGUF."""
    try:
        with open_file(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            return _Parser(file, size).header()
    except (OSError, struct.error, UnicodeDecodeError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read as GGUF: {said}") from None


class _Parser:
    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file, self.size = file, size

    def header(self) -> Header:
        if self._take(4) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._number("I")
        if version not in VERSIONS:
            raise ValueError(f"its version is {version}; versions {' and '.join(map(str, VERSIONS))} can be read")
        num_tensors, num_keys = self._number("Q"), self._number("Q")
        if max(num_tensors, num_keys) > MAX_COUNT:
            raise ValueError(f"it claims to have {num_keys} keys and {num_tensors} tensors")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            metadata[key] = self._value(self._number("I"))
        infos = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise ValueError(f"its alignment is {alignment!r}")
        start = -(-self.file.tell() // alignment) * alignment
        tensors = {}
        for name, shape, kind, offset in infos:
            tensors[name] = self._placed(name, shape, kind, start + offset)
        if len(tensors) < len(infos):
            raise ValueError("two of its tensors have one name")
        return Header(metadata, tensors)

    def _placed(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> TensorInfo:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        if kind not in {int(known) for known in GGML_QUANT_SIZES}:
            raise ValueError(f"its tensor {name!r:.60} is of an unknown type ({kind})")
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        count = math.prod(shape)
        if not shape or count == 0 or shape[-1] % block:
            raise ValueError(f"its tensor {name!r:.60} has the shape {shape}, which its type cannot have")
        num_bytes = count // block * size
        if start + num_bytes > self.size:
            raise ValueError(
                f"it is cut off: its tensor {name!r:.60} ends at byte {start + num_bytes:,}, the file at {self.size:,}"
            )
        return TensorInfo(shape, kind, start, num_bytes)

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, num_dimensions = self._string(), self._number("I")
        if num_dimensions > MAX_DIMENSIONS:
            raise ValueError(f"its tensor {name!r:.60} has {num_dimensions} dimensions")
        shape = tuple(reversed([self._number("Q") for _ in range(num_dimensions)]))
        return name, shape, self._number("I"), self._number("Q")

    def _value(self, kind: int) -> Any:
        if kind in NUMBERS:
            return self._number(NUMBERS[kind])
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            raise ValueError(f"one of its values is of an unknown type ({kind})")
        kind, count = self._number("I"), self._number("Q")
        if count > self.size - self.file.tell():
            raise ValueError("one of its lists is longer than the file")
        if kind in NUMBERS:
            form = f"<{count}{NUMBERS[kind]}"
            return list(struct.unpack(form, self._take(struct.calcsize(form))))
        if kind != STRING:
            raise ValueError("one of its lists contains lists")
        return [self._string() for _ in range(count)]

    def _string(self) -> str:
        length = self._number("Q")
        if length > MAX_STRING:
            raise ValueError(f"one of its texts claims {length:,} bytes")
        return self._take(length).decode()

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))[0]

    def _take(self, count: int) -> bytes:
        if count > self.size - self.file.tell():
            raise ValueError("it is cut off within its head")
        return self.file.read(count)
