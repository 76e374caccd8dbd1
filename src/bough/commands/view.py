"""`bough view`: a web page over a run folder or a data file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bough.config.viewer import ViewConfig
from bough.errors import InputError
from bough.terminal import console

if TYPE_CHECKING:
    from bough.viewer.answers import FolderAnswers


def view(config: ViewConfig) -> int:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise InputError("the viewer needs starlette and uvicorn; pip install 'bough[viewer]'") from None
    from bough.viewer.answers import FolderAnswers
    from bough.viewer.contents import Root
    from bough.viewer.index import Index

    answers = FolderAnswers(Index(Root(config.path)), config.model)
    return _export(config, answers) if config.export is not None else _serve(config, answers)


def _serve(config: ViewConfig, answers: FolderAnswers) -> int:
    from bough.viewer.security import door
    from bough.viewer.server import listen, make_app, serve

    guarded = door(config.host, remote=config.allow_remote, token=config.token)
    listening = listen(config.host, config.port)
    host = f"[{config.host}]" if ":" in config.host else config.host
    address = f"http://{host}:{listening.getsockname()[1]}/"
    if guarded.token is not None:
        address += f"?token={guarded.token}"
    out = console.out()
    out.print(f"Viewing {config.path} at", markup=False)
    out.print(address, style="bold", markup=False, soft_wrap=True)
    out.print("Press Ctrl-C to stop.", style="dim")
    serve(make_app(answers, guarded), listening)
    return 0


def _export(config: ViewConfig, answers: FolderAnswers) -> int:
    from bough.viewer.export import export

    assert config.export is not None
    if config.export.exists() and not config.overwrite:
        raise InputError(f"{config.export} exists; give another --export or --overwrite")
    written = export(answers, config.export, config.max_records)
    out = console.out()
    out.print(f"{config.export}: {written.megabytes:.1f} MB, {written.records} records", markup=False)
    if written.left_out:
        out.print(f"{written.left_out} records are not included; raise --max-records", style="yellow", markup=False)
    return 0
