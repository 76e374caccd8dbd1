"""Settings of `bough view`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from bough.config.base import Config


class ViewConfig(Config):
    """Opens a run folder or a data file as a local web page, or writes it into one file to send on."""

    path: Path = Field(
        Path("runs"),
        description="a run's folder, a folder of runs, or a data file",
        json_schema_extra={"positional": True},
    )
    model: str | None = Field(
        None, description="the model whose tokens to show (default: the one that the folder's settings name)"
    )
    port: int = Field(7788, ge=0, le=65535, description="the port to listen on; 0: any that is free")
    host: str = Field("127.0.0.1", description="the address to listen on; another than loopback needs --allow-remote")
    allow_remote: bool = Field(False, description="let others reach the page, with a token")
    token: str | None = Field(None, description="the token to ask for (default: one is made)")
    export: Path | None = Field(None, description="write the page into this one .html file instead of serving it")
    max_records: int = Field(300, ge=1, description="records of each kind in an exported page at most")
    overwrite: bool = Field(False, description="replace the exported file if it exists")
