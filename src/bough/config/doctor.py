"""Settings of `bough doctor`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from bough.config.calls import MODEL, CallsConfig
from bough.config.data import SourceConfig
from bough.config.report import ReportConfig


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
