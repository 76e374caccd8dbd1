"""Digests of files and weights: whether what is on the disk is still what a run was made from.

Weights may be many gigabytes, so a digest must cost little: files are read whole up to a
limit, and larger ones at evenly spaced places. Training changes weights everywhere, a
truncated or exchanged file differs in size, header or content, and all of that shows in
the samples. A single changed byte between two samples of a larger file does not.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

from bough.models.resolve import resolve

WHOLE = 256 << 20  # bytes
BLOCK = 1 << 20
# What a model or an adapter consists of; other files in its folder do not change what it computes.
WEIGHT_FILES = (".safetensors", ".bin", ".gguf", ".json", ".jinja")


def file_digest(path: Path, *, whole: int = WHOLE, block: int = BLOCK) -> str:
    """SHA-256 of a file's size and content; past `whole` bytes, of `whole` bytes in evenly spaced blocks."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        hasher = hashlib.sha256(str(size).encode())
        last = size - block
        count = whole // block
        starts = range(0, size, block) if size <= whole else (last * i // (count - 1) for i in range(count))
        for start in starts:
            hasher.update(_read(file, start, block))
    return hasher.hexdigest()


def folder_digest(folder: Path) -> str:
    """One digest of the names and contents of all files in `folder` that weights consist of."""
    hasher = hashlib.sha256()
    for file in sorted(file for file in folder.iterdir() if file.suffix in WEIGHT_FILES and file.is_file()):
        hasher.update(f"{file.name} {file_digest(file)}\n".encode())
    return hasher.hexdigest()


def model_digest(name: str) -> str:
    """The digest of a built-in model or a model's folder; of a model on the hub, the commit that is on this machine."""
    from huggingface_hub import try_to_load_from_cache

    source = resolve(name)
    if isinstance(source, Path):
        return folder_digest(source)
    found = try_to_load_from_cache(source, "config.json")
    return Path(found).parent.name if isinstance(found, str) else source


def _read(file: BinaryIO, start: int, count: int) -> bytes:
    file.seek(start)
    return file.read(count)
