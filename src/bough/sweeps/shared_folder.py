"""Whether the nodes of a cluster share the folder of a sweep: same files, and locks that hold across nodes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from bough.disk import locked, remove, write_atomically
from bough.errors import InputError
from bough.runs.run import LOCK


@dataclass(frozen=True)
class Token:
    """A file that every node must see. The process that made it holds the lock of the folder meanwhile.

    `working_folder` is where relative paths in the recipe begin; `version` is that of Bough.
    """

    folder: Path
    name: str
    text: str
    working_folder: Path
    version: str


@contextmanager
def token_in(folder: Path) -> Iterator[Token]:
    """A new token in `folder`, removed at the end."""
    token = Token(
        folder.absolute(), f".token-{secrets.token_hex(8)}", secrets.token_hex(8), Path.cwd(), version("bough")
    )
    write_atomically(token.folder / token.name, token.text)
    try:
        yield token
    finally:
        remove(token.folder / token.name)


def problem_here(token: Token) -> str | None:
    """Why this machine cannot work in the token's folder; None if it can."""
    if (found := version("bough")) != token.version:
        return f"it has Bough {found}, and the machine of the sweep {token.version}"
    try:
        seen = (token.folder / token.name).read_text()
    except OSError:
        seen = ""
    if seen != token.text:
        return f"it does not see the files in {token.folder}"
    try:
        with locked(token.folder / LOCK, wait=False):
            return f"locks in {token.folder} do not hold across machines; mount that disk with file locks"
    except BlockingIOError:  # as it must be: the sweep holds it
        pass
    if not token.working_folder.is_dir():
        return f"it has no folder {token.working_folder}, where relative paths of the recipe begin"
    return None


def check_shared(folder: Path, problems: Mapping[str, str | None]) -> None:
    """InputError if a node, named by its address, has a problem with the folder."""
    found = [f"node {node}: {problem}" for node, problem in problems.items() if problem is not None]
    if found:
        raise InputError(f"{folder} must be on a disk that all nodes share; give another --output:", found)
