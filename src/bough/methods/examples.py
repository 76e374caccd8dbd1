"""From data to examples: read the records, build their calls, and count every row and call that is kept or dropped."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bough.data.base import IN_MEMORY, Sample, digest
from bough.data.formats import named
from bough.data.lines import files, is_dataset, is_hub
from bough.data.reader import Problem, Problems, raw_rows
from bough.errors import BoughError, InputError
from bough.files import build_once, cache_folder, open_file
from bough.ledger import plural
from bough.training.method import CallSource, Data, Example, Examples
from bough.types import Message, split_conversation

if TYPE_CHECKING:
    from bough.chat.builder import CallBuilder
    from bough.config.training import TrainingConfig
    from bough.methods.example_store import Chunk, Preparation, StoreWriter

log = logging.getLogger(__name__)
# Smaller files are prepared in a second or two: no worker processes, and nothing kept.
LARGE = 4 << 20  # bytes
E = TypeVar("E", bound=Example)
Chunks = Callable[[], "Iterator[Chunk]"]


def examples_from(
    data: Data,
    config: TrainingConfig,
    builder: CallBuilder,
    make: Callable[[Sample, CallSource], E],
    kind: type[E],
    *,
    score: str,
    depends_on: Sequence[str] = (),
) -> Examples[E]:
    """Every record of `data` as an example of class `kind`, or counted in the ledger with the reason why not.

    `make` raises RowError for a record that cannot be trained on. With on_error "stop",
    all rows that cannot be read are reported in one error; a record that can be read but
    has nothing to train on is always only counted. `score` names the field of an example
    that a curriculum orders by, `depends_on` the method's settings that `make` reads.

    A large file is prepared by worker processes and kept for later runs.
    """
    from bough.methods.example_store import Preparation, num_workers, prepared

    preparation = Preparation(builder, make, score)
    if not isinstance(data, str | Path):
        records = data
        found = _in_memory(IN_MEMORY, config, lambda: _of_records(preparation, records), kind)
    else:
        path, large = Path(data), _is_large(Path(data))
        format = None if config.data.format == "auto" else named(config.data.format)
        workers = num_workers() if large else 1

        def chunks() -> Iterator[Chunk]:
            return prepared(preparation, raw_rows(path, format), workers)

        settings = {name: getattr(config, name) for name in depends_on}
        settings |= {"examples": kind.__name__, "format": config.data.format, "on_error": config.data.on_error}
        name = cache_name(path, settings, builder) if large else None
        found = _kept(name, path, config, chunks, kind) if name else _in_memory(str(path), config, chunks, kind)
    if too_long := found.calls.dropped["too_long"]:
        log.warning("%s: dropped %s longer than %s (too_long).", found.name, plural(too_long, "call"), builder.limit)
    return found


def _is_large(path: Path) -> bool:
    return is_hub(path) or sum(file.stat().st_size for file in data_files(path)) > LARGE


def _of_records(preparation: Preparation[Any], records: Iterable[Sample]) -> Iterator[Chunk]:
    """Records in memory, numbered from 1 as the lines of a file are."""
    for number, sample in enumerate(records, 1):
        yield preparation.records(IN_MEMORY, [(number, sample)])


def _in_memory(name: str, config: TrainingConfig, chunks: Chunks, kind: type[E]) -> Examples[E]:
    from bough.methods.example_store import StoreWriter

    writer = StoreWriter()
    found: Examples[E] = _collect(name, config, chunks(), writer)
    found.examples = writer.in_memory(kind)
    return found


def _kept(name: str, path: Path, config: TrainingConfig, chunks: Chunks, kind: type[E]) -> Examples[E]:
    """The examples under `name` in the cache, prepared now if they are not there or are damaged."""
    from bough.methods.example_store import StoreWriter, open_store

    def build(folder: Path) -> None:
        writer = StoreWriter(folder)
        writer.finish(_collect(str(path), config, chunks(), writer).to_json())

    try:
        folder, summary = kept_examples(name, build)
    except BoughError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        log.warning("Prepared examples cannot be kept for later runs: %s.", error)
        return _in_memory(str(path), config, chunks, kind)
    found: Examples[E] = Examples.from_json(str(path), summary)
    found.examples = open_store(folder, kind)
    return found


def _collect(name: str, config: TrainingConfig, chunks: Iterator[Chunk], writer: StoreWriter) -> Examples[Any]:
    """Writes all chunks; returns the counts of their rows, without the examples.

    InputError if there are bad rows and on_error is "stop", or if there is no example.
    """
    from bough.terminal.console import printable, progress

    found, skipped, bad, hasher = Examples[Any](name), Counter[str](), Problems(), hashlib.sha256()
    dropped: dict[str, str] = {}
    first = next(chunks, None)  # the worker processes are started before the progress bar has a thread
    with progress(f"preparing {Path(name).name}") as bar:
        for chunk in chain([first] if first else [], chunks):
            writer.add(chunk)
            found.rows.add(chunk.rows)
            found.calls.add(chunk.calls)
            found.temperatures |= chunk.temperatures
            skipped.update(chunk.skipped)
            dropped = {**chunk.dropped, **dropped}
            for problem in starmap(Problem, chunk.problems):
                if problem.reason != "torn":  # the last line of a file may have been cut off by a kill
                    bad.add(problem)
            for piece in chunk.hashed:
                hasher.update(piece)
            bar.advance(bar.task_ids[0], chunk.rows.came_in + chunk.skipped.total())
    for reason, count in skipped.items():
        found.rows.drop(reason, count)
    if config.data.on_error == "stop" and bad:
        rows = plural(bad.reasons.total(), "bad row")
        raise InputError(f"{name} has {rows} (drop with --on-error skip):", map(printable, bad.lines()))
    if not found.rows.kept:
        raise InputError(f"{name}: no row can be trained on: {found.rows}; {found.calls}", dropped.values())
    found.digest = hasher.hexdigest()
    return found


def head_of(start: list[Message]) -> str:
    """A name for the episode that a history belongs to: what was said before the first reply."""
    return digest(*split_conversation(start)[0])


# Prepared examples kept between runs, under a name that says all that they depend on.
# The name is a digest of the data's content and path, of the settings and the code that make examples of it, and of
# the tokenizer and its chat template. Where one of them changes, the name does. What was not used for longest is
# removed when the cache is over its limit.

FOLDER, SUMMARY = "examples", "summary.json"
# Bytes of prepared examples that are kept: about two million episodes of ten turns.
LIMIT = 16 << 30
SOURCE = Path(__file__).parents[1]
# What of this package decides what the examples of a file are.
CODE = (
    "types.py",
    "data",
    "chat",
    "environments/rewards.py",
    "environments/rubric.py",
    "curation/advantages.py",
    "online/method.py",
    "methods",
    "training/method.py",
)
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
