"""`bough view`: a web page over a run folder or a data file."""

from __future__ import annotations

from dataclasses import asdict

from bough.api.view import Viewer, export_configured
from bough.config.viewer import ViewConfig
from bough.plural import plural
from bough.terminal import console


def view(config: ViewConfig) -> int:
    return _export(config) if config.export is not None else _serve(config)


def _serve(config: ViewConfig) -> int:
    viewer = Viewer(config)
    if config.as_json:
        console.print_json({"path": str(config.path), "address": viewer.address})
    else:
        out = console.out()
        out.print(f"Viewing {config.path} at", markup=False)
        out.print(viewer.address, style="bold", markup=False, soft_wrap=True)
        out.print("Press Ctrl-C to stop.", style="dim")
    viewer.serve()
    return 0


def _export(config: ViewConfig) -> int:
    written = export_configured(config)
    if config.as_json:
        console.print_json({"page": str(config.export)} | asdict(written))
        return 0
    out = console.out()
    out.print(f"{config.export}: {written.megabytes:.1f} MB, {plural(written.records, 'record')}", markup=False)
    if written.left_out:
        out.print(
            f"{plural(written.left_out, 'record is', 'records are')} not included; raise --max-records",
            style="yellow",
            markup=False,
        )
    return 0
