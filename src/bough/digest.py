"""Digests of texts and JSON values, and the seeds derived from them.

They name files, mark equal values and seed episodes, so their bits must stay the same
from version to version. Files and weights have digests of their own (models/digest.py).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from pydantic_core import to_json


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
