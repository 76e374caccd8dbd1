"""Which GGUF file a model folder in the cache was made of."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from bough.disk import read_json, write_json
from bough.errors import InputError
from bough.models.gguf_header import Header, read_header

FILE = "gguf_source.json"
# The folder of a converted file: a digest of the file and the version of the conversion.
FOLDER = re.compile(r"gguf-[0-9a-f]{24}-\d+")
# Where a file says which model it is. Not general.base_model: that is what its model was trained from.
ID_KEYS = ("general.source.huggingface.repository", "general.source.repo_url", "general.repo_url")
ID = re.compile(r"(?:https://huggingface\.co/)?([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)/?")


@dataclass(frozen=True)
class GGUFSource:
    """The file's name, and the hub id of its model, if it says so."""

    file: str
    hub_id: str | None = None

    @classmethod
    def of(cls, path: Path, header: Header) -> GGUFSource:
        texts = [value for key in ID_KEYS if isinstance(value := header.metadata.get(key), str)]
        return cls(path.name, next((found[1] for text in texts if (found := ID.fullmatch(text.strip()))), None))


def write_source(path: Path, header: Header, folder: Path) -> None:
    """Notes in a model folder that it was made of the file."""
    write_json(folder / FILE, asdict(GGUFSource.of(path, header)))


def gguf_source(name: str) -> GGUFSource | None:
    """The GGUF file that a model's name stands for, as the file or as the folder made of it; None for other models."""
    path = Path(name)
    if path.suffix == ".gguf":
        try:
            return GGUFSource.of(path, read_header(path))
        except (OSError, InputError):  # it is not here any more
            return GGUFSource(path.name)
    if not FOLDER.fullmatch(path.name):
        return None
    try:
        return GGUFSource(**read_json(path / FILE))
    except (OSError, ValueError, TypeError):  # made before the file was noted
        return None
