"""The program `chromium` of a browser that was unpacked into a folder: it finds libraries and fonts beside itself."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

NAME = "chromium"
FONTS = "fonts.conf"


def write(folder: Path, program: Path, *, libraries: Iterable[Path] = (), fonts: Path | None = None) -> None:
    """Writes the launcher for `program`. All paths are below `folder`, and the folder may be moved afterwards."""
    lines = ["#!/bin/sh", 'here=$(cd "$(dirname "$0")" && pwd -P)']
    if places := [_shown(path, folder) for path in libraries]:
        lines.append(f'export LD_LIBRARY_PATH="{":".join(places)}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"')
    if fonts is not None:
        (folder / FONTS).write_text(_configuration(fonts.relative_to(folder)))
        lines.append(f'export FONTCONFIG_FILE="$here/{FONTS}"')
    lines.append(f'exec "{_shown(program, folder)}" "$@"')
    launcher = folder / NAME
    launcher.write_text("\n".join(lines) + "\n")
    launcher.chmod(0o755)
    program.chmod(0o755)


def _shown(path: Path, folder: Path) -> str:
    return f"$here/{path.relative_to(folder)}"


def _configuration(fonts: Path) -> str:
    """Fonts of the system first, those that came with the browser after them."""
    return f"""\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir prefix="relative">{fonts}</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
"""
