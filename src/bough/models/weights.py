"""Whether weights are still the same: a folder may have been retrained under the same name."""

from __future__ import annotations

from pathlib import Path

FILES = (".safetensors", ".bin", ".gguf", ".json", ".jinja")


def stamp(model: str, adapter: Path | None) -> list[list[str | int]]:
    """Name, size and time of every file that a model and its adapter consist of; none for a mere name.

    A model is a folder or a GGUF file.
    """
    folders = [path for path in (Path(model), adapter) if path is not None and path.is_dir()]
    files = sorted(file for folder in folders for file in folder.iterdir() if file.suffix in FILES)
    if Path(model).suffix == ".gguf" and Path(model).is_file():
        files.append(Path(model))
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
