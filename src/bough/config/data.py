"""Settings of the `bough data` commands."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from bough.config.base import Config
from bough.config.groups import MODEL, CallsConfig, ReportConfig


class SourceConfig(Config):
    """Input data."""

    file: Path = Field(
        description="a .jsonl (plain, .zst, .gz, .xz), .json, .csv or .parquet file, a .eval log, a folder "
        "of such shards, a saved Hugging Face dataset, or one on the Hub as hf://org/name/split",
        json_schema_extra={"positional": True},
    )
    format: str = Field("auto", description="the file's format; `bough data formats` lists them")


class StatsConfig(ReportConfig):
    """Prints counts, lengths and rewards of a data file."""

    source: SourceConfig


class ValidateConfig(ReportConfig):
    """Lists the bad rows of a data file as file:line, one line per problem, and counts them by reason.

    Exits with 2 if there is a bad row.
    """

    source: SourceConfig


class ConvertConfig(ReportConfig):
    """Converts a data file to another format."""

    source: SourceConfig
    to: str = Field(
        "bough",
        description="the format to write: bough, trl, openai, sharegpt, knowlyr-sft, knowlyr-dpo or knowlyr-grpo",
    )
    output: Path = Field(description="the file to write: .jsonl or .jsonl.zst", json_schema_extra={"short": "-o"})
    on_error: Literal["stop", "skip"] = Field(
        "stop", description="bad rows: stop lists them all and writes nothing, skip drops and counts them"
    )
    overwrite: bool = Field(False, description="replace the output file if it exists")


class ShowConfig(Config):
    """Prints records as readable transcripts."""

    source: SourceConfig
    index: int = Field(0, ge=0, description="the first record to show, counted from 0")
    count: int = Field(1, ge=1, description="number of records to show")


class FormatsConfig(ReportConfig):
    """Lists the file formats that Bough reads and writes."""


# Settings of `bough doctor`.


class DoctorConfig(ReportConfig):
    """Shows which tokens of a data file a model would be trained on, counts them, and reports problems.

    Exits with 2 if a row is bad, an answer does not fit, or nothing would be trained.
    """

    source: SourceConfig
    model: str = Field("smollm2", description=MODEL)
    calls: CallsConfig = CallsConfig()
    samples: int = Field(1, ge=0, description="number of records to show token by token")
    limit: int = Field(1000, ge=1, description="number of records to tokenise")
    output: Path | None = Field(None, description="a folder for the settings, the report and the ledger")
