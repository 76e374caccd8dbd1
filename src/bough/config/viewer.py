"""Settings of `bough view`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from bough.config.report import ReportConfig


class ViewConfig(ReportConfig):
    """Serves a run folder or a data file as a local web page, or exports it to a single file."""

    path: Path = Field(
        Path("runs"),
        description="a run folder, a folder of runs, or a data file",
        json_schema_extra={"positional": True},
    )
    model: str | None = Field(
        None, description="the model whose tokens are shown (default: the one in the folder's settings)"
    )
    port: int = Field(7788, ge=0, le=65535, description="the port to listen on; 0: any free port")
    host: str = Field("127.0.0.1", description="the address to listen on; any but loopback needs --allow-remote")
    allow_remote: bool = Field(False, description="allow access from other machines, with a token")
    token: str | None = Field(None, description="the access token (default: a random one)")
    export: Path | None = Field(None, description="write the page to this .html file instead of serving it")
    max_records: int = Field(300, ge=1, description="maximum number of records of each kind in an exported page")
    overwrite: bool = Field(False, description="replace the exported file if it exists")
