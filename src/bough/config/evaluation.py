"""Settings of `bough eval`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from bough.config.calls import CallsConfig


class EvalConfig(CallsConfig):
    """Measures a model on held-out files: perplexity and token accuracy of replies, accuracy on pairs."""

    eval_file: Path = Field(description="the data: any format that `bough data formats` lists")
    format: str = Field("auto", description="the file's format")
    token_budget: int = Field(4096, ge=128, description="tokens in one forward pass, shared ones counted once")
    output: Path | None = Field(None, description="a JSON file for the numbers", json_schema_extra={"short": "-o"})
