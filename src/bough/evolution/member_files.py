"""The files of a member as bytes, to take it from one machine to another bit for bit."""

from __future__ import annotations

from pathlib import Path

from bough.evolution.individual import DESCRIPTION, OPTIMIZER

# By the names of the files.
Files = dict[str, bytes]


def read_files(folder: Path) -> Files:
    """All files of a member's folder, which has no folders inside."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def write_files(files: Files, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def description(files: Files) -> Files:
    """What of a member says who it is, without its weights."""
    return {DESCRIPTION: files[DESCRIPTION]}


def adapter(files: Files) -> Files:
    """What of a member others can load: its adapter."""
    return {name: content for name, content in files.items() if name not in (DESCRIPTION, OPTIMIZER)}
