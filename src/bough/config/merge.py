"""Settings of `bough merge`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from bough.config.base import Config


class MergeConfig(Config):
    """Writes a plain model: the base with an adapter's changes in its own weights."""

    adapter: Path = Field(description="the adapter's folder", json_schema_extra={"positional": True})
    output: Path = Field(description="the folder to write", json_schema_extra={"short": "-o"})
    model: str | None = Field(None, description="the base model (default: the one that the adapter names)")
