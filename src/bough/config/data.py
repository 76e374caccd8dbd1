"""Settings of the `bough data` verbs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from bough.config.base import Config


class SourceConfig(Config):
    """What is read."""

    file: Path = Field(
        description="a .jsonl (plain, .zst, .gz, .xz), .json or .parquet file, a folder of such shards, a saved "
        "Hugging Face data set, or one on the hub as hf://org/name/split",
        json_schema_extra={"positional": True},
    )
    format: str = Field("auto", description="the file's format; `bough data formats` lists them")


class StatsConfig(SourceConfig):
    """Counts, lengths and rewards of a data file."""


class ValidateConfig(SourceConfig):
    """Names every bad row of a data file as file:line, and counts them by reason."""


class ConvertConfig(SourceConfig):
    """Writes a data file in another format."""

    to: str = Field("bough", description="the format to write: bough, trl, knowlyr-sft, knowlyr-dpo or knowlyr-grpo")
    output: Path = Field(description="the file to write: .jsonl or .jsonl.zst", json_schema_extra={"short": "-o"})
    on_error: Literal["stop", "skip"] = Field(
        "stop", description="a bad row: stop writes nothing and names them all, skip leaves them out and counts them"
    )
    overwrite: bool = Field(False, description="replace the output file if it exists")


class ShowConfig(SourceConfig):
    """Prints records as readable transcripts."""

    index: int = Field(0, ge=0, description="which record to show first, from 0")
    count: int = Field(1, ge=1, description="how many records to show")


class FormatsConfig(Config):
    """Lists the file formats Bough reads and writes."""
