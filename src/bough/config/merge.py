"""Settings of `bough merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from bough.config.base import Config


class MergeConfig(Config):
    """Writes a plain model: the base with an adapter's changes in its own weights."""

    adapter: Path = Field(description="the adapter's folder", json_schema_extra={"positional": True})
    output: Path = Field(
        description="the folder to write, or a file whose name ends in .gguf for llama.cpp",
        json_schema_extra={"short": "-o"},
    )
    gguf_type: Literal["f32", "f16", "bf16", "q8_0"] | None = Field(
        None, description="how a GGUF file holds the weights (default: f16)"
    )
    model: str | None = Field(None, description="the base model (default: the one that the adapter names)")

    @property
    def is_gguf(self) -> bool:
        """Whether the output is one GGUF file."""
        return self.output.suffix == ".gguf"

    @model_validator(mode="after")
    def _a_type_needs_its_file(self) -> Self:
        if self.gguf_type and not self.is_gguf:
            raise ValueError(f"gguf_type belongs to an output whose name ends in .gguf, and this is {self.output}")
        return self
