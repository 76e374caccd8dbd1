"""What a folder holds that can be looked at: data files, training runs, evaluations, stages of recipes.

Only what is found here is ever served: a page asks for a name, and a name that was not
found stands for nothing. Links that lead out of the folder are not followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bough.errors import InputError
from bough.trajectories.lines import PACKED_SUFFIXES, TEXT_SUFFIXES

# Weights, pictures and half-finished work: nothing in there is a record.
CLOSED = {"checkpoints", "cache", "final", "best", "images", "node_modules", "__pycache__"}
DATA_ENDINGS = tuple(text + packed for text in TEXT_SUFFIXES[:2] for packed in PACKED_SUFFIXES)
MAX_DEPTH = 7
MAX_FILES = 5000


@dataclass(frozen=True)
class Contents:
    """Paths relative to the root, by what they are. `folders` are those that hold any of it."""

    data: list[str] = field(default_factory=list)
    training: list[str] = field(default_factory=list)
    evaluations: list[str] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)


class Root:
    """The folder that is looked at, or one file of it."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise InputError(f"{path}: there is no such file or folder")
        self.only = None if path.is_dir() else path.name
        self.path = path.resolve() if path.is_dir() else path.parent.resolve()
        self.name = path.resolve().name

    def contents(self) -> Contents:
        """What is there now."""
        if self.only is not None:
            return Contents(data=[self.only])
        found = Contents()
        for file in self._files():
            name, folder = os.path.relpath(file, self.path), os.path.relpath(file.parent, self.path)
            if file.name == "metrics.jsonl":
                found.training.append(folder)
            elif file.name == "results.json":
                found.evaluations.append(folder)
            elif file.name == "stage.json":
                found.stages.append(folder)
            elif file.name.endswith(DATA_ENDINGS) or file.suffix == ".parquet":
                found.data.append(name)
        return found

    def inside(self, path: Path) -> Path | None:
        """The real path of a file in the folder, or None where it lies outside or is no plain file."""
        try:
            real = path.resolve()
            return real if real.is_file() and real.is_relative_to(self.path) else None
        except (OSError, ValueError):  # too long, a null byte, a loop of links
            return None

    def _files(self) -> Iterator[Path]:
        count = 0
        for folder, folders, files in os.walk(self.path):
            depth = len(Path(folder).relative_to(self.path).parts)
            folders[:] = sorted(f for f in folders if f not in CLOSED and not f.startswith(".") and depth < MAX_DEPTH)
            for name in sorted(files):
                if name.startswith("."):
                    continue
                path = Path(folder) / name
                if path.is_symlink() and self.inside(path) is None:
                    continue
                count += 1
                if count > MAX_FILES:
                    return
                yield path
