"""Paths of this machine, removed from published text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


def without_places(text: str, folders: Iterable[Path]) -> str:
    """`text` with the names of this machine's folders replaced by "…"."""
    for folder in sorted({str(folder) for folder in folders}, key=len, reverse=True):
        if len(folder) > 1:
            text = re.sub(rf"(?<![\w./-]){re.escape(folder)}(?![\w.-])", "…", text)
    return text
