"""Paths in settings files, resolved after a run was moved or copied, and removed from published text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


def nearby(written: str | Path, folder: Path) -> Path | None:
    """The file that `written`, in the settings of `folder`, refers to; None if there is none.

    Siblings of the folder come first: a copied run refers to its own stages, not to
    those of the original.
    """
    path = Path(written).expanduser()
    parts = [part for part in path.parts if part not in (path.anchor, "..")]
    home = folder.resolve().parent
    for start in range(len(parts) - 1):
        if (found := home.joinpath(*parts[start:])).exists():
            return found
    return path if path.exists() else None


def without_places(text: str, folders: Iterable[Path]) -> str:
    """`text` with the names of this machine's folders replaced by "…"."""
    for folder in sorted({str(folder) for folder in folders}, key=len, reverse=True):
        if len(folder) > 1:
            text = re.sub(rf"(?<![\w./-]){re.escape(folder)}(?![\w.-])", "…", text)
    return text
