"""`bough.view` and `bough.export_page`: a run or a data file as a page in the browser."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from bough.api.inputs import StrPath
from bough.api.settings import make_config, settings_of
from bough.config.viewer import ViewConfig
from bough.errors import InputError

if TYPE_CHECKING:
    from bough.viewer.answers import FolderAnswers
    from bough.viewer.export import Written

# Time that the server gets to stop.
STOP_TIMEOUT_S = 5.0


class Viewer:
    """A page over a folder or a file; `address` is where it can be opened.

    `bough.view` returns it while a thread serves it, until `close`, the end of a `with`
    block or the end of the program.
    """

    def __init__(self, config: ViewConfig) -> None:
        answers = _answers(config)
        from bough.serving.endpoint import listen
        from bough.viewer.security import door
        from bough.viewer.server import make_app, make_server

        self.path = config.path
        guarded = door(config.host, remote=config.allow_remote, token=config.token)
        self._server = make_server(make_app(answers, guarded))
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
            self._thread.join(STOP_TIMEOUT_S)
        self._listening.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    answers = _answers(config)
    from bough.viewer.export import export

    if config.export.exists() and not config.overwrite:
        raise InputError(f"{config.export} exists; give another --export or --overwrite")
    return export(answers, config.export, config.max_records)


def _answers(config: ViewConfig) -> FolderAnswers:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise InputError("the viewer needs starlette and uvicorn; pip install 'bough[viewer]'") from None
    from bough.viewer.answers import FolderAnswers
    from bough.viewer.contents import Root
    from bough.viewer.index import Index

    return FolderAnswers(Index(Root(config.path)), config.model)
