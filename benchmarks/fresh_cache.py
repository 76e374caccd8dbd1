"""A cache folder without compiled code, probes and prepared examples, but with the user's models.

Models are linked, not copied: fetching and converting one takes a network and a minute, which is
not what a benchmark of start-up measures.
"""

from __future__ import annotations

from pathlib import Path

from bough.files import cache_folder

KEPT = ("models", "wheels")


def fresh_cache(folder: Path) -> Path:
    """Makes the cache folder `folder`; give it to a command as BOUGH_CACHE."""
    folder.mkdir(parents=True)
    for name in KEPT:
        own = cache_folder() / name
        own.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(own, target_is_directory=True)
    return folder
