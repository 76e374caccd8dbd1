"""How records name a model and an agent: the same on every machine, without absolute paths."""

from __future__ import annotations

from pathlib import Path

from bough.models.digest import folder_digest

DIGEST_LENGTH = 8


def record_name(path: str | Path) -> str:
    """A name as it is, or a path without the part that only this machine has.

    An absolute path is named relative to the working directory, or by its last two parts.
    """
    path = Path(path)
    if not path.is_absolute():
        return str(path)
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else Path(*path.parts[-2:]))


def agent_name(model: str, adapter: Path | None) -> str:
    """MODEL, or MODEL+ADAPTER@DIGEST: adapters of different weights have different names."""
    if adapter is None:
        return record_name(model)
    digest = folder_digest(adapter)[:DIGEST_LENGTH] if adapter.is_dir() else "unknown"
    return f"{record_name(model)}+{record_name(adapter)}@{digest}"
