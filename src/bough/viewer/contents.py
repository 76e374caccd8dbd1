"""What a folder contains that can be shown: data files, training runs, evaluations, evolutions, stages of recipes.

Only what is found here is ever served: a page asks for a name, and unknown names are
refused. Links that lead out of the folder are not followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bough.disk import open_file
from bough.errors import InputError
from bough.trajectories.lines import PACKED_SUFFIXES, TEXT_SUFFIXES

# Weights, pictures and unfinished work: these folders contain no records.
CLOSED = {"checkpoints", "cache", "final", "best", "images", "node_modules", "__pycache__"}
DATA_ENDINGS = tuple(text + packed for text in TEXT_SUFFIXES[:2] for packed in PACKED_SUFFIXES)
MAX_DEPTH = 7
MAX_FILES = 5000


@dataclass(frozen=True)
class Contents:
    """Paths relative to the root, by kind. `problems` says why other files are not shown."""

    data: list[str] = field(default_factory=list)
    training: list[str] = field(default_factory=list)
    evaluations: list[str] = field(default_factory=list)
    evolutions: list[str] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)

    def stage_of(self, file: str) -> str:
        """The folder of the stage that a data file belongs to: the nearest stage above it, else its own folder."""
        known = {*self.stages, *self.evaluations, *self.evolutions, *self.training}
        folders = [str(folder) for folder in Path(file).parents]
        return next((folder for folder in folders if folder in known), folders[0])


class Root:
    """The folder that is shown, or one file of it."""

    def __init__(self, path: Path) -> None:
        try:
            if not path.exists():
                raise InputError(f"{path}: there is no such file or folder")
            if not path.is_dir():
                open_file(path).close()
            self.only = None if path.is_dir() else path.name
            self.path = path.resolve() if path.is_dir() else path.parent.resolve()
            self.name = path.resolve().name
        except InputError:
            raise
        except (OSError, RuntimeError, ValueError) as error:  # no permission, a loop of links, a null byte
            raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None

    def contents(self) -> Contents:
        """What the folder contains now."""
        if self.only is not None:
            return Contents(data=[self.only])
        found = Contents()
        for file in self._files(found.problems):
            name, folder = os.path.relpath(file, self.path), os.path.relpath(file.parent, self.path)
            places = {
                "metrics.jsonl": found.training,
                "results.json": found.evaluations,
                "stage.json": found.stages,
                "lineage.jsonl": found.evolutions,
            }
            is_data = file.name.endswith(DATA_ENDINGS) or file.suffix == ".parquet"
            if file.name not in places and not is_data:
                continue
            if (problem := self._problem(file)) is not None:
                found.problems[_shown(name)] = problem
            elif file.name in places:
                places[file.name].append(folder)
            else:
                found.data.append(name)
        return found

    def inside(self, path: Path) -> Path | None:
        """The real path of a file in the folder, or None if it is outside or not a regular file."""
        try:
            real = path.resolve()
            return real if real.is_file() and real.is_relative_to(self.path) else None
        except (OSError, ValueError, RuntimeError):  # too long, a null byte, a loop of links
            return None

    def _problem(self, file: Path) -> str | None:
        """Why a file cannot be shown."""
        try:
            str(file).encode()
            mode = file.stat().st_mode
        except UnicodeEncodeError:
            return "its name is not UTF-8"
        except (OSError, RuntimeError) as error:
            return f"it cannot be read: {getattr(error, 'strerror', None) or error}"
        if not stat.S_ISREG(mode):
            return "it is not a regular file"
        return None if self.inside(file) is not None else "it is a link that leads out of the folder"

    def _files(self, problems: dict[str, str]) -> Iterator[Path]:
        def unreadable(error: OSError) -> None:
            problems[_shown(os.path.relpath(error.filename, self.path))] = f"it cannot be read: {error.strerror}"

        count = 0
        for folder, folders, files in os.walk(self.path, onerror=unreadable):
            depth = len(Path(folder).relative_to(self.path).parts)
            folders[:] = sorted(f for f in folders if f not in CLOSED and not f.startswith(".") and depth < MAX_DEPTH)
            for name in sorted(files):
                if name.startswith("."):
                    continue
                count += 1
                if count > MAX_FILES:
                    problems[_shown(os.path.relpath(folder, self.path))] = (
                        f"there are more than {MAX_FILES} files; those from here on are not shown"
                    )
                    return
                yield Path(folder) / name


def _shown(name: str) -> str:
    """A file's name as text, even if it is not UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
