"""How records name a model and an agent: the same on every machine, without absolute paths."""

from __future__ import annotations

from pathlib import Path

from bough.errors import short_path
from bough.models.digest import folder_digest

DIGEST_LENGTH = 8


def agent_name(model: str, adapter: Path | None) -> str:
    """MODEL, or MODEL+ADAPTER@DIGEST: adapters of different weights have different names."""
    if adapter is None:
        return short_path(model)
    digest = folder_digest(adapter)[:DIGEST_LENGTH] if adapter.is_dir() else "unknown"
    return f"{short_path(model)}+{short_path(adapter)}@{digest}"
