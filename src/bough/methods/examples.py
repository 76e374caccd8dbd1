"""From data to examples: read the records, build their calls, and count every row and call that is kept or dropped."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bough.errors import BoughError, InputError
from bough.formats import named
from bough.formats.base import Sample, digest
from bough.methods.base import Data, Example, Examples
from bough.methods.call_source import CallSource as CallSource
from bough.methods.call_source import count_calls as count_calls
from bough.methods.example_cache import cache_name, data_files, kept_examples
from bough.plural import plural
from bough.trajectories.lines import is_hub
from bough.trajectories.problems import Problem, Problems
from bough.trajectories.reader import raw_rows
from bough.types import Message, split_conversation

if TYPE_CHECKING:
    from bough.calls.builder import CallBuilder
    from bough.config.training import TrainingConfig
    from bough.methods.example_store import Chunk, StoreWriter
    from bough.methods.preparation import Preparation

log = logging.getLogger(__name__)
# The name of data that is given in Python, where settings and records name a file.
IN_MEMORY = "records"
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
    from bough.methods.preparation import Preparation, num_workers, prepared

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
    """Writes all chunks; returns what came of their rows, without the examples.

    InputError if there are bad rows and on_error is "stop", or if there is no example.
    """
    from bough.terminal.console import progress

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
        _stop_at_bad_rows(name, bad)
    if not found.rows.kept:
        raise InputError(f"{name}: no row can be trained on: {found.rows}; {found.calls}", dropped.values())
    found.digest = hasher.hexdigest()
    return found


def _stop_at_bad_rows(name: str, bad: Problems) -> None:
    """InputError that lists the bad rows."""
    from bough.terminal.console import printable

    rows = plural(bad.reasons.total(), "bad row")
    raise InputError(f"{name} has {rows} (drop with --on-error skip):", map(printable, bad.lines()))


def head_of(start: list[Message]) -> str:
    """A name for the episode that a history belongs to: what was said before the first reply."""
    return digest(*split_conversation(start)[0])
