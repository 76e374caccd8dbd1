"""Settings that say how a command prints its report."""

from __future__ import annotations

from pydantic import AliasChoices, Field

from bough.config.base import Config


class ReportConfig(Config):
    """How the report is printed."""

    # Excluded from what is written and compared: it does not change what is computed.
    as_json: bool = Field(
        False,
        exclude=True,
        validation_alias=AliasChoices("as_json", "json"),
        description="print the report as one JSON object on stdout, and nothing else there",
        json_schema_extra={"renamed": True},
    )
