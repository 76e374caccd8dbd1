"""The record of a stage: its inputs, its outputs, and whether it is finished.

The fingerprint of a stage covers its command, its settings and the content of its inputs.
A stage that finished with the same fingerprint is skipped; an unfinished one is resumed.
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

from bough.digest import text_digest
from bough.disk import MAX_JSON, read_small, write_json


@dataclass
class StageRecord:
    """The record of a stage, in `stage.json` of its folder.

    `note` is the decision of a gate. `goes_on_with` is the model that the run continues with after an
    evaluation: a path inside the run, or the recipe's own model.
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
        """The record in a stage's folder; None if there is none or it cannot be read."""
        try:
            return TypeAdapter(cls).validate_json(read_small(folder / "stage.json", MAX_JSON), strict=True)
        except (OSError, ValueError):
            return None


def fingerprint(verb: str, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """A digest of everything that determines a stage's result."""
    return text_digest(json.dumps([verb, settings, inputs], sort_keys=True, default=str), size=8)


def content(path: Path) -> str:
    """A digest of a file, or of a folder's files with their names; for a name that is not a file, the name itself.

    README.md does not count: a model card may be added to the weights later.
    """
    if path.is_dir():
        hasher = hashlib.sha256()
        for file in sorted(found for found in path.rglob("*") if found.is_file() and found.name != "README.md"):
            hasher.update(os.fsencode(file.relative_to(path)) + f"\0{_digest(file)}\n".encode())
        return hasher.hexdigest()[:16]
    return _digest(path) if path.is_file() else str(path)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]
