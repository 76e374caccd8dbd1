"""Every file name inside a run folder, in one place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from bough.config.base import Config
from bough.errors import InputError


class RunDir:
    """A folder that holds what one run was told, did and left behind."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.ledger = self.path / "ledger.json"
        self.report = self.path / "report.json"

    def create(self, config: Config) -> None:
        """Makes the folder and writes the resolved settings into it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.config, config.to_yaml())
        except OSError as error:
            raise InputError(f"{self.path}: cannot be used as a run folder: {error.strerror}") from None


def write_json(path: Path, value: Any) -> None:
    """A small JSON file, readable by people."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Writes the whole file or leaves the old one: a reader never sees a half."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)
