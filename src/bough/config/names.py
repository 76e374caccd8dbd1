"""Names that become part of a path. They come out of files, so they must not be able to lead elsewhere."""

from __future__ import annotations

import re

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
RULE = "a name has letters, digits, dashes, underscores and dots (not first), 100 at most"


def is_name(text: str) -> bool:
    """Whether `text` can be a file's or a folder's name, here and nowhere else."""
    return NAME.fullmatch(text) is not None
