"""Settings of `bough doctor`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from bough.config.calls import CallsConfig
from bough.config.data import SourceConfig


class DoctorConfig(CallsConfig, SourceConfig):
    """Shows which tokens of a data file a model would be trained on, counts them, and says what is wrong."""

    samples: int = Field(1, ge=0, description="how many records to show token by token")
    limit: int = Field(1000, ge=1, description="how many records to tokenise")
    output: Path | None = Field(None, description="a run folder for the settings, the report and the ledger")
