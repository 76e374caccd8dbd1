"""The calls that turn one state of the benchmark's file system into another.

A folder is a dictionary from names to folders and to the text of files. Listings show names in
the order in which they were made, so from the first name that is out of order everything is made
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bough.types import ToolCall

# What an agent calls to change folders, files or the working folder.
CHANGES = frozenset({"cd", "mkdir", "rmdir", "touch", "echo", "cp", "mv", "rm"})
Folder = dict[str, Any]


@dataclass(frozen=True)
class FileSystem:
    """Everything in the root folder, and the names of the folders on the way to the working folder."""

    root: Folder
    path: tuple[str, ...]


def changes(now: FileSystem, wanted: FileSystem) -> list[ToolCall]:
    """The calls that make `now` the `wanted` state; none if they are equal."""
    if now == wanted and list(_names(now.root)) == list(_names(wanted.root)):
        return []
    return [*_enter(()), *_folder(now.root, wanted.root, ()), *_enter(wanted.path)]


def _folder(now: Folder, wanted: Folder, path: tuple[str, ...]) -> Iterator[ToolCall]:
    """Changes the working folder, which is at `path`, and ends in it."""
    kept = 0
    for one, other in zip(now.items(), wanted.items(), strict=False):
        if one[0] != other[0] or isinstance(one[1], str) != isinstance(other[1], str):
            break
        kept += 1
    for name in list(now)[kept:]:
        yield ToolCall(name="rm", arguments={"file_name": name})
    for number, (name, content) in enumerate(wanted.items()):
        before = now[name] if number < kept else None
        if isinstance(content, str):
            yield from _file(name, before, content)
            continue
        if before is None:
            yield ToolCall(name="mkdir", arguments={"dir_name": name})
        inside = (*path, name)
        if inner := list(_folder(before or {}, content, inside)):
            yield ToolCall(name="cd", arguments={"folder": name})
            yield from inner
            yield from _enter(path)


def _file(name: str, before: str | None, content: str) -> Iterator[ToolCall]:
    if before is None:
        yield ToolCall(name="touch", arguments={"file_name": name})
    if content != (before or ""):
        yield ToolCall(name="echo", arguments={"content": content, "file_name": name})


def _enter(path: tuple[str, ...]) -> Iterator[ToolCall]:
    """Goes there from the root: a folder that was moved has lost the way to its parent."""
    for name in ("/", *path):
        yield ToolCall(name="cd", arguments={"folder": name})


def _names(folder: Folder) -> Iterator[str]:
    """All names, in the order of the folders."""
    for name, content in folder.items():
        yield name
        if not isinstance(content, str):
            yield from _names(content)
