"""Names that become part of a path. They come from files, so they must not lead out of the folder."""

from __future__ import annotations

import re

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
RULE = "a name consists of at most 100 letters, digits, dashes, underscores and dots, and no dot first"


def is_name(text: str) -> bool:
    """Whether `text` can be the name of a file or folder inside another."""
    return NAME.fullmatch(text) is not None
