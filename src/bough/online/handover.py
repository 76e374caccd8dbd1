"""A folder for weights on their way to a sampler.

While its process lives it is locked, so the next process can tell what a killed one has left:
in memory, a model that is never deleted would cost its size until the machine restarts.
"""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from pathlib import Path

from bough.disk import locked, remove

PREFIX = "bough-weights-"
LOCK = ".lock"


class HandoverFolder:
    """A new folder in `parent`, deleted by `close`. With `private`, other users cannot read it."""

    def __init__(self, parent: Path, *, private: bool) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        remove_left(parent)
        name = f"{PREFIX}{uuid.uuid4().hex}"
        # Under a name that no other process looks for until it is locked.
        draft, self.path = parent / f".{name}", parent / name
        draft.mkdir(mode=0o700 if private else 0o777)
        self._held = ExitStack()
        self._held.enter_context(locked(draft / LOCK, wait=False))
        draft.rename(self.path)

    def new(self, name: str) -> Path:
        """A folder inside that does not exist yet."""
        return self.path / f"{name}-{uuid.uuid4().hex[:8]}"

    def close(self) -> None:
        if self.path.exists():
            remove(self.path)
        self._held.close()


def remove_left(parent: Path) -> None:
    """Removes the folders of processes that were killed."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            if folder.is_symlink() or not (folder / LOCK).is_file():
                continue
            with locked(folder / LOCK, wait=False):
                remove(folder)
        except OSError:  # in use, or another user's
            continue
