"""Prepared examples kept between runs, under a name that says all that they depend on.

The name is a digest of the data's content and path, of the settings and the code that make examples
of it, and of the tokenizer and its chat template. Where one of them changes, the name does.
What was not used for longest is removed when the cache is over its limit.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bough.cache import build_once, cache_folder
from bough.disk import open_file
from bough.trajectories.lines import files, is_dataset, is_hub

if TYPE_CHECKING:
    from bough.calls.builder import CallBuilder

log = logging.getLogger(__name__)
FOLDER, SUMMARY = "examples", "summary.json"
# Bytes of prepared examples that are kept: about two million episodes of ten turns.
LIMIT = 16 << 30
SOURCE = Path(__file__).parents[1]
# What of this package decides what the examples of a file are.
CODE = ("types.py", "formats", "trajectories", "speech", "calls", "rewards", "methods")
LIBRARIES = ("jinja2", "numpy", "pydantic", "tokenizers", "transformers")
# Settings of a tokenizer that say where it was found.
ELSEWHERE = ("path", "file", "hash")


def cache_name(data: Path, settings: Mapping[str, Any], builder: CallBuilder) -> str | None:
    """The name of the prepared examples of `data`; None where something that they depend on has no content to digest.

    `settings` are those of the method that its examples depend on.
    """
    tokenizer = builder.template.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or is_hub(data):
        return None
    own = {k: v for k, v in tokenizer.init_kwargs.items() if not k.endswith(ELSEWHERE)}
    limits = [builder.max_length, builder.stride, builder.context]
    hasher = hashlib.sha256()
    for part in (
        *(f"{name} {_version(name)}" for name in LIBRARIES),
        _digest_of(file for name in CODE for file in _python_files(SOURCE / name)),
        _digest_of(data_files(data)),
        str(data),
        json.dumps([dict(settings), limits], sort_keys=True, default=str),
        json.dumps([type(tokenizer).__name__, own, tokenizer.chat_template], sort_keys=True, default=str),
        backend.to_str(),
    ):
        hasher.update(f"{len(part)} {part}\n".encode("utf-8", "surrogatepass"))
    return hasher.hexdigest()[:32]


def kept_examples(name: str, build: Callable[[Path], None]) -> tuple[Path, dict[str, Any]]:
    """The folder of the prepared examples `name` and its summary. `build` fills it if it is not there or is damaged."""
    from bough.methods.example_store import read_summary

    folder = build_once(f"{FOLDER}/{name}", build)
    try:
        summary = read_summary(folder)
    except (OSError, ValueError) as error:
        log.warning("The prepared examples in %s are damaged (%s); preparing them again.", folder, error)
        shutil.rmtree(folder, ignore_errors=True)
        summary = read_summary(build_once(f"{FOLDER}/{name}", build))
    _mark_used(name)
    return folder, summary


def _mark_used(name: str) -> None:
    """Notes that prepared examples are used now, and removes the longest unused ones beyond the limit.

    A process that reads removed ones keeps them until it ends.
    """
    folder = cache_folder() / FOLDER
    try:
        os.utime(folder / name / SUMMARY)
        entries = [(summary.stat().st_mtime, summary.parent) for summary in folder.glob(f"*/{SUMMARY}")]
        total = 0
        for _, entry in sorted(entries, reverse=True):
            total += sum(file.stat().st_size for file in entry.iterdir())
            if total > LIMIT and entry.name != name:
                shutil.rmtree(entry, ignore_errors=True)
    except OSError as error:  # another process may be doing the same
        log.debug("The cache of prepared examples could not be tidied: %s", error)


def data_files(data: Path) -> list[Path]:
    """The files that a path to data stands for."""
    if is_dataset(data):
        return sorted(file for file in data.rglob("*") if file.is_file())
    return files(data)


def _python_files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _digest_of(paths: Iterable[Path]) -> str:
    hasher = hashlib.sha256()
    for path in paths:
        with open_file(path) as file:
            hasher.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode("utf-8", "replace"))
    return hasher.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "?"
