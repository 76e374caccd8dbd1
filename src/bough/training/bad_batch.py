"""The batch of a step that went wrong, on file: to be looked at, not to be read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic_core import to_json
from torch import Tensor

from bough.training.objective import Example

NAMED = 3


def write_batch(path: Path, examples: Sequence[Example]) -> str:
    """Writes a line an example; returns where it is and, for the first few, which records they came from."""
    path.write_bytes(b"".join(to_json(asdict(example), fallback=_plain) + b"\n" for example in examples))
    places = ", ".join(example.place for example in examples[:NAMED] if example.place)
    return f"{path} (from {places}…)" if places else str(path)


def _plain(value: Any) -> Any:
    """What JSON has no word for, as something that it has."""
    return value.tolist() if isinstance(value, Tensor) else value.model_dump()
