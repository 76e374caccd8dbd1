"""Files and folders that are whole or not there: written under another name, synced, renamed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """A small JSON file, readable by people."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Writes the whole file or leaves the old one: a reader never sees a half. Its folder is made where it is not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    sync(beside)
    beside.rename(path)


def put_in_place(draft: Path, final: Path) -> None:
    """Gives a finished folder its name, in place of what had it before, which is whole until then."""
    for path in [*draft.rglob("*"), draft]:
        if not path.is_symlink():  # it is part of its folder, and may lead nowhere
            sync(path)
    old = final.with_name(f".{final.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    draft.rename(final)
    sync(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def sync(path: Path) -> None:
    """Forces a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
