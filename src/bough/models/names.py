"""How records name a model and an agent: the same on every machine, without absolute paths."""

from __future__ import annotations

from pathlib import Path

from bough.errors import short_path
from bough.models.digest import file_digest, folder_digest
from bough.paths import working_directory

DIGEST_LENGTH = 8


def model_name(model: str) -> str:
    """A model as records name it: a name as it is, a folder or a GGUF file as `short_path` writes it.

    One outside the working directory also has a digest: others may end in the same two names.
    """
    path = Path(model)
    inside = not path.is_absolute() or any(path.is_relative_to(base) for base in working_directory())
    if inside or not path.exists():
        return short_path(model)
    digest = folder_digest(path) if path.is_dir() else file_digest(path)
    return f"{short_path(model)}@{digest[:DIGEST_LENGTH]}"


def agent_name(model: str, adapter: Path | None) -> str:
    """MODEL, or MODEL+ADAPTER@DIGEST: adapters of different weights have different names."""
    if adapter is None:
        return short_path(model)
    digest = folder_digest(adapter)[:DIGEST_LENGTH] if adapter.is_dir() else "unknown"
    return f"{short_path(model)}+{short_path(adapter)}@{digest}"
