"""Settings of `bough merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from bough.config.report import ReportConfig


class MergeConfig(ReportConfig):
    """Merges an adapter into its base model and writes the result as a model of its own."""

    adapter: Path = Field(description="the folder of the adapter", json_schema_extra={"positional": True})
    output: Path = Field(
        description="the folder to write, or a file that ends in .gguf, for llama.cpp",
        json_schema_extra={"short": "-o"},
    )
    gguf_type: Literal["f32", "f16", "bf16", "q8_0"] | None = Field(
        None, description="data type of the weights in a GGUF file (default: f16)"
    )
    model: str | None = Field(None, description="the base model (default: the one named in the adapter)")

    @property
    def is_gguf(self) -> bool:
        """Whether the output is one GGUF file."""
        return self.output.suffix == ".gguf"

    @model_validator(mode="after")
    def _a_type_needs_its_file(self) -> Self:
        if self.gguf_type and not self.is_gguf:
            raise ValueError(f"`gguf_type` needs an `output` that ends in .gguf; it is {self.output}")
        return self
