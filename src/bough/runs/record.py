"""What a run remembers of each stage: what it was made of, what it made, and whether it is finished.

A stage's fingerprint is taken of its verb, its settings and the content of its inputs.
Finished with the same fingerprint, it is not run again; begun with the same, it goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from bough.disk import MAX_JSON, read_small, write_json

# Read in pieces: weights may be larger than memory.
PIECE = 1 << 20


@dataclass
class StageRecord:
    """A stage's memory, in `stage.json` of its folder.

    `note` is what a gate said; `goes_on_with`, after an evaluation, the model that the run goes on with:
    a path inside the run, or the recipe's own model.
    """

    verb: str
    name: str
    round: int
    fingerprint: str
    inputs: dict[str, str]
    outputs: dict[str, str] = field(default_factory=dict)
    finished: bool = False
    seconds: float = 0.0
    note: str = ""
    goes_on_with: str | None = None

    def write(self, folder: Path) -> None:
        write_json(folder / "stage.json", asdict(self))

    @classmethod
    def read(cls, folder: Path) -> StageRecord | None:
        """What is remembered of the stage of `folder`; None where there is nothing, or nothing that can be read."""
        try:
            return TypeAdapter(cls).validate_json(read_small(folder / "stage.json", MAX_JSON), strict=True)
        except (OSError, ValueError):
            return None


def fingerprint(verb: str, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """One word for all that determines a stage's result."""
    text = json.dumps([verb, settings, inputs], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def content(path: Path) -> str:
    """A digest of a file, or of a folder's files with their names; of a name that is no file, the name itself.

    A model card that is written beside weights later does not make them others.
    """
    if path.is_dir():
        hasher = hashlib.sha256()
        for file in sorted(found for found in path.rglob("*") if found.is_file() and found.name != "README.md"):
            hasher.update(os.fsencode(file.relative_to(path)) + f"\0{_digest(file)}\n".encode())
        return hasher.hexdigest()[:16]
    return _digest(path) if path.is_file() else str(path)


def _digest(file: Path) -> str:
    hasher = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(PIECE):
            hasher.update(piece)
    return hasher.hexdigest()[:16]
