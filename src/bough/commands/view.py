"""`bough.view` and `bough.export_page`: a run or a data file as a page in the browser."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field

from bough.commands.objects import StrPath
from bough.commands.table import Command
from bough.config.base import setting
from bough.config.groups import ReportConfig
from bough.config.keywords import make_config, settings_of
from bough.engines.load import need_server
from bough.errors import InputError
from bough.ledger import plural
from bough.terminal import console

if TYPE_CHECKING:
    from bough.report.viewer.server import FolderAnswers, Written


class ViewConfig(ReportConfig):
    """Serves a run folder or a data file as a local web page, or exports it to a single file."""

    path: Path = setting(Path("runs"), positional=True, description="a run folder, a folder of runs, or a data file")
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


class Viewer:
    """A page over a folder or a file; `address` is where it can be opened.

    `bough.view` returns it while a thread serves it, until `close`, the end of a `with`
    block or the end of the program.
    """

    def __init__(self, config: ViewConfig) -> None:
        answers = _answers(config)
        import uvicorn

        from bough.engines.server.app import listen
        from bough.report.viewer.server import door, make_app

        self.path = config.path
        guarded = door(config.host, remote=config.allow_remote, token=config.token)
        self._server = uvicorn.Server(uvicorn.Config(
            make_app(answers, guarded), log_level="critical", access_log=False, lifespan="on", server_header=False,
            timeout_graceful_shutdown=1, timeout_keep_alive=30,
        ))  # fmt: skip
        self._listening = listen(config.host, config.port)
        self._thread: threading.Thread | None = None
        host = f"[{config.host}]" if ":" in config.host else config.host
        token = f"?token={guarded.token}" if guarded.token is not None else ""
        self.address = f"http://{host}:{self._listening.getsockname()[1]}/{token}"

    def serve(self) -> None:
        """Answers until interrupted."""
        self._server.run(sockets=[self._listening])

    def start(self) -> Self:
        """Answers in a thread, until `close`."""
        self._thread = threading.Thread(target=self.serve, name="bough-viewer", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stops answering."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(5.0)
        self._listening.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.path} at {self.address}>"


@settings_of(ViewConfig, "export", "max_records", "overwrite")
def view(path: StrPath = "runs", *, port: int = 0, **settings: Any) -> Viewer:
    """Serve a run folder, a folder of runs or a data file as a page, on this machine only.

    Returns at once: a thread serves the page at the result's `address`, until its `close`.
    `port` 0 takes any that is free.
    """
    return Viewer(make_config(ViewConfig, "view", settings, path=Path(path), port=port, export=None)).start()


@settings_of(ViewConfig, "export", "port", "host", "allow_remote", "token")
def export_page(path: StrPath, output: StrPath, **settings: Any) -> Written:
    """Write the page into one .html file that can be opened and sent to others without a server.

    The result says how many records are in it, and how many were left out.
    """
    return export_configured(make_config(ViewConfig, "export_page", settings, path=Path(path), export=Path(output)))


def export_configured(config: ViewConfig) -> Written:
    """The page of the settings, written into their `export`."""
    assert config.export is not None
    if config.export.exists() and not config.overwrite:
        raise InputError(f"{config.export} exists; give another --export or --overwrite")
    with closing(_answers(config)) as answers:
        from bough.report.viewer.server import export

        return export(answers, config.export, config.max_records)


def _answers(config: ViewConfig) -> FolderAnswers:
    need_server()
    from bough.report.viewer.contents import Root
    from bough.report.viewer.index import Index
    from bough.report.viewer.server import FolderAnswers

    return FolderAnswers(Index(Root(config.path)), config.model)


def view_command(config: ViewConfig) -> int:
    out = console.out()
    if config.export is None:
        viewer = Viewer(config)
        if config.as_json:
            console.print_json({"path": str(config.path), "address": viewer.address})
        else:
            out.print(f"Viewing {config.path} at", markup=False)
            out.print(viewer.address, style="bold", markup=False, soft_wrap=True)
            out.print("Press Ctrl-C to stop.", style="dim")
        viewer.serve()
        return 0
    written = export_configured(config)
    if config.as_json:
        console.print_json({"page": str(config.export)} | asdict(written))
        return 0
    out.print(f"{config.export}: {written.megabytes:.1f} MB, {plural(written.records, 'record')}", markup=False)
    if written.left_out:
        omitted = plural(written.left_out, "record is", "records are")
        out.print(f"{omitted} not included; raise --max-records", style="yellow", markup=False)
    return 0


COMMANDS = {
    "view": Command(
        ViewConfig,
        view_command,
        "  bough view runs/demo\n  bough view pairs.jsonl --model smollm2\n  bough view runs/demo --export demo.html",
    ),
}
