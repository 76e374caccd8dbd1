"""Installed versions do not change while tests run, and each load of a built-in model asks for two of them.

Packages bind `importlib.metadata.version` when they are imported, so call `remember` before that.
"""

from functools import cache
from importlib import metadata


def remember() -> None:
    """Each version is looked up once in this process and those that are forked from it."""
    metadata.version = cache(metadata.version)
