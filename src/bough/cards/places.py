"""Where a path in a settings file leads today: runs are moved, copied, and looked at from other folders."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


def nearby(written: str | Path, folder: Path) -> Path | None:
    """What `written`, in the settings of `folder`, names; None where nothing does.

    Beside the folder comes first: a run that was copied is made of its own stages, not of
    those that still lie where it came from.
    """
    path = Path(written).expanduser()
    parts = [part for part in path.parts if part not in (path.anchor, "..")]
    home = folder.resolve().parent
    for start in range(len(parts) - 1):
        if (found := home.joinpath(*parts[start:])).exists():
            return found
    return path if path.exists() else None


def without_places(text: str, folders: Iterable[Path]) -> str:
    """`text` without the names of this machine's folders: what lies in them is told from there on."""
    for folder in sorted({str(folder) for folder in folders}, key=len, reverse=True):
        if len(folder) > 1:
            text = re.sub(rf"(?<![\w./-]){re.escape(folder)}(?![\w.-])", "…", text)
    return text
