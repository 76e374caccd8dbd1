"""Paths in records: written without absolute ones, and found again after a run was moved or copied.

    near the working directory or the record's own folder    relative to the nearer of the two
    anywhere else                                            the last two parts

A record is read by other people on other machines. What a path led to is fixed by digests
beside it, never by the path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def without_absolute(value: Any, *bases: Path) -> Any:
    """Settings with every absolute path relative to the nearest of `bases`, or cut to its last two parts.

    Text that does not begin as a path stays, and so does the class after a path (`file.py:Class`).
    """
    if isinstance(value, dict):
        return {key: without_absolute(one, *bases) for key, one in value.items()}
    if isinstance(value, list):
        return [without_absolute(one, *bases) for one in value]
    if not isinstance(value, str) or not value.startswith(os.sep):
        return value
    near = [os.path.relpath(value, base) for base in bases if os.path.commonpath([value, base]) != os.sep]
    return min(near, key=lambda path: len(Path(path).parts), default=str(Path(*Path(value).parts[-2:])))


def working_directory() -> list[Path]:
    """The working directory as a base for `without_absolute`; none where it was removed."""
    try:
        return [Path.cwd()]
    except OSError:
        return []


def nearby(written: str | Path, folder: Path) -> Path | None:
    """The file that `written`, in the settings of `folder`, refers to; None if there is none."""
    return next(candidates(written, folder), None)


def candidates(written: str | Path, folder: Path) -> Iterator[Path]:
    """Everything that `written`, in the settings of `folder`, may refer to and that exists, the likeliest first.

    Siblings of the folder come first: a copied run refers to its own stages, not to
    those of the original.
    """
    path = Path(written).expanduser()
    parts = [part for part in path.parts if part not in (path.anchor, "..")]
    home = folder.resolve().parent
    beside = (home.joinpath(*parts[start:]) for start in range(len(parts) - 1))
    inside = [folder / path] if path.parts[:1] == ("..",) else []  # as `without_absolute` writes them
    yield from (found for found in (*beside, path, *inside) if found.exists())
