"""From data to examples: read the records, build their calls, and count every row and call that is kept or dropped.

Prepared examples have a compact form: token arrays, memory-mapped where they are on disk, and one JSON line each.
A call's tokens as Python lists take forty bytes each, and the calls of an episode repeat their history. Here
a token takes four bytes and what a call shares with the call before it is stored once. An example becomes
an object only when it is asked for.

    records.jsonl    one line per example: everything but the tokens
    tokens.bin       uint32, little-endian: what each call adds to the one before it
    columns.npy      per example: where its line and its tokens end, trained tokens, score, cluster
    summary.json     ledgers, digest, and size and digest of the other files

Reading it parses JSON and numbers and executes nothing.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import io
import json
import logging
import mmap
import multiprocessing
import os
import shutil
import signal
import sys
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import version
from itertools import chain, starmap
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json, to_json

from bough.data.base import IN_MEMORY, Sample, common_prefix
from bough.data.lines import files, is_dataset, is_hub
from bough.data.reader import Problem, Problems, RawRows, named, raw_rows
from bough.errors import BoughError, InputError, RowError
from bough.files import build_once, cache_folder, open_file, read_json, write_json
from bough.ledger import Ledger, plural
from bough.models.resolve import file_digest
from bough.training.method import CallSource, Data, Example, Examples, LazyExamples, count_calls
from bough.types import Call

if TYPE_CHECKING:
    from bough.chat.template import CallBuilder
    from bough.config.training import TrainingConfig

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
    preparation, name = Preparation(builder, make, score), None
    if not isinstance(data, str | Path):
        records, shown = data, IN_MEMORY

        def chunks() -> Iterator[Chunk]:
            # Numbered from 1, as the lines of a file are.
            return (preparation.records(IN_MEMORY, [numbered]) for numbered in enumerate(records, 1))
    else:
        path, shown = Path(data), str(data)
        large = is_hub(path) or sum(file.stat().st_size for file in data_files(path)) > LARGE
        format = None if config.data.format == "auto" else named(config.data.format)
        workers = num_workers() if large else 1

        def chunks() -> Iterator[Chunk]:
            return prepared(preparation, raw_rows(path, format), workers)

        if large:
            settings = {name: getattr(config, name) for name in depends_on}
            settings |= {"examples": kind.__name__, "format": config.data.format, "on_error": config.data.on_error}
            name = cache_name(path, settings | {"score": score}, builder, make)
    found = _kept(name, shown, config, chunks, kind) if name else _in_memory(shown, config, chunks, kind)
    if too_long := found.calls.dropped["too_long"]:
        log.warning("%s: dropped %s longer than %s (too_long).", found.name, plural(too_long, "call"), builder.limit)
    return found


def _in_memory(name: str, config: TrainingConfig, chunks: Chunks, kind: type[E]) -> Examples[E]:
    writer = StoreWriter()
    found: Examples[E] = _collect(name, config, chunks(), writer)
    found.examples = writer.in_memory(kind)
    return found


def _kept(cached: str, name: str, config: TrainingConfig, chunks: Chunks, kind: type[E]) -> Examples[E]:
    """The examples under `cached` in the cache, prepared now if they are not there or are damaged."""

    def build(folder: Path) -> None:
        writer = StoreWriter(folder)
        writer.finish(_collect(name, config, chunks(), writer).to_json())

    try:
        folder = build_once(f"{FOLDER}/{cached}", build)
        try:
            summary = read_summary(folder)
        except (OSError, ValueError) as error:
            log.warning("The prepared examples in %s are damaged (%s); preparing them again.", folder, error)
            shutil.rmtree(folder, ignore_errors=True)
            summary = read_summary(build_once(f"{FOLDER}/{cached}", build))
    except BoughError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        log.warning("Prepared examples cannot be kept for later runs: %s.", error)
        return _in_memory(name, config, chunks, kind)
    _mark_used(cached)
    found: Examples[E] = Examples.from_json(name, summary)
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
    "methods",
    "training/method.py",
)
LIBRARIES = ("jinja2", "numpy", "pydantic", "tokenizers", "transformers")
# Settings of a tokenizer that say where it was found.
ELSEWHERE = ("path", "file", "hash")


def cache_name(
    data: Path, settings: Mapping[str, Any], builder: CallBuilder, make: Callable[..., Example]
) -> str | None:
    """The name of the prepared examples of `data`; None where something that they depend on has no content to digest.

    `settings` are those of the method that its examples depend on. `make` is known by its name
    and file, or those of its object's classes; a function inside another one cannot be told from its like.
    """
    tokenizer = builder.template.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    makers: Sequence[Any] = type(make.__self__).__mro__[:-1] if isinstance(make, MethodType) else [make]
    places = [f"{one.__module__} {getattr(one, '__qualname__', '<locals>')}" for one in makers]
    code = [getattr(sys.modules.get(one.__module__), "__file__", None) for one in makers]
    if backend is None or is_hub(data) or "<locals>" in str(places) or None in code:
        return None
    own = {k: v for k, v in tokenizer.init_kwargs.items() if not k.endswith(ELSEWHERE)}
    limits = [builder.max_length, builder.stride, builder.context]
    hasher = hashlib.sha256()
    for part in (
        *(f"{name} {version(name)}" for name in LIBRARIES),
        _digest_of(file for name in CODE for file in sorted((SOURCE / name).rglob("*.py")) or [SOURCE / name]),
        *places,
        _digest_of(Path(str(file)) for file in code),
        _digest_of(data_files(data)),
        str(data),
        json.dumps([dict(settings), limits], sort_keys=True, default=str),
        json.dumps([type(tokenizer).__name__, own, tokenizer.chat_template], sort_keys=True, default=str),
        backend.to_str(),
    ):
        hasher.update(f"{len(part)} {part}\n".encode("utf-8", "surrogatepass"))
    return hasher.hexdigest()[:32]


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


def _digest_of(paths: Iterable[Path]) -> str:
    hasher = hashlib.sha256()
    for path in paths:
        with open_file(path) as file:
            hasher.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode("utf-8", "replace"))
    return hasher.hexdigest()


# The stored form.

RECORDS, TOKENS, COLUMNS = "records.jsonl", "tokens.bin", "columns.npy"
FILES = (RECORDS, TOKENS, COLUMNS)
ID = np.dtype("<u4")
# `score` is what a curriculum orders by, NaN where there is none.
COLUMN = np.dtype([("line", "<i8"), ("token", "<i8"), ("trained", "<i8"), ("score", "<f8"), ("cluster", "S32")])


@dataclass
class Chunk:
    """Examples of neighbouring rows in their stored form, and the counts of dropped rows.

    `hashed` is what the digest of the data covers, `problems` are the bad rows by file, line, reason and message.
    `dropped` has for each reason that a row was dropped for what is said of the first one.
    """

    records: list[bytes] = field(default_factory=list)
    tokens: list[bytes] = field(default_factory=list)
    columns: list[tuple[int, int, int, float, bytes]] = field(default_factory=list)
    hashed: list[bytes] = field(default_factory=list)
    rows: Ledger = field(default_factory=lambda: Ledger("rows"))
    calls: Ledger = field(default_factory=lambda: Ledger("calls"))
    skipped: Counter[str] = field(default_factory=Counter)
    problems: list[tuple[str, int, str, str]] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    temperatures: set[float] = field(default_factory=set)

    def add(self, example: Example, score: float | None) -> None:
        """Appends an example."""
        record = {one.name: getattr(example, one.name) for one in fields(example) if one.name != "calls"}
        calls, added, previous = [], list[NDArray[Any]](), list[int]()
        for call in example.calls:
            ids = call.prompt_ids + call.completion_ids
            shared = common_prefix(previous, ids)
            more = call.model_dump(exclude={"prompt_ids", "completion_ids"}, exclude_defaults=True)
            calls.append([shared, len(call.prompt_ids), len(ids), more])
            added.append(np.array(ids[shared:], ID))
            previous = ids
            if call.temperature is not None:
                self.temperatures.add(call.temperature)
        line = to_json({"example": record, "calls": calls}) + b"\n"
        tokens = b"".join(array.tobytes() for array in added)
        self.records.append(line)
        self.tokens.append(tokens)
        cluster, value = example.cluster.encode(), np.nan if score is None else score
        assert len(cluster) <= COLUMN["cluster"].itemsize, f"the name of a cluster is too long: {example.cluster}"
        self.columns.append((len(line), len(tokens) // ID.itemsize, example.num_trained, value, cluster))


class ExampleStore(LazyExamples[E]):
    """Examples of one class, read from their stored form."""

    def __init__(self, kind: type[E], records: Any, tokens: NDArray[Any], columns: NDArray[Any]) -> None:
        self._kind, self._records, self._tokens = kind, records, tokens
        self._lines = np.concatenate([[0], np.cumsum(columns["line"])])
        self._starts = np.concatenate([[0], np.cumsum(columns["token"])])
        # Equal names have equal numbers.
        self.clusters: list[int] = np.unique(columns["cluster"], return_inverse=True)[1].tolist()
        self.difficulties: list[float] = difficulties(columns["trained"], columns["score"])

    def at(self, index: int) -> E:
        record = from_json(bytes(self._records[self._lines[index] : self._lines[index + 1]]))
        calls = list(self._calls(record["calls"], self._tokens[self._starts[index] : self._starts[index + 1]]))
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in record["example"].items()}
        return self._kind(**values | {"calls": calls, "difficulty": self.difficulties[index]})

    def _calls(self, stored: list[Any], tokens: NDArray[Any]) -> Iterator[Call]:
        added, start, ids = tokens.tolist(), 0, list[int]()
        for shared, prompt, length, more in stored:
            ids = ids[:shared] + added[start : start + length - shared]
            start += length - shared
            # They were validated when they were prepared.
            yield Call.model_construct(prompt_ids=ids[:prompt], completion_ids=ids[prompt:], **more)


class StoreWriter:
    """Collects chunks in memory, or in the files of a folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._records: Any = io.BytesIO() if folder is None else (folder / RECORDS).open("wb")
        self._tokens: Any = io.BytesIO() if folder is None else (folder / TOKENS).open("wb")
        self._columns: list[NDArray[Any]] = []

    def add(self, chunk: Chunk) -> None:
        self._records.writelines(chunk.records)
        self._tokens.writelines(chunk.tokens)
        self._columns.append(np.array(chunk.columns, COLUMN))

    def finish(self, summary: dict[str, Any]) -> None:
        """Writes the columns, and last the summary: a folder with one is complete."""
        assert self.folder is not None
        self._records.close()
        self._tokens.close()
        np.save(self.folder / COLUMNS, self._all_columns(), allow_pickle=False)
        listed = {name: [(self.folder / name).stat().st_size, file_digest(self.folder / name)] for name in FILES}
        write_json(self.folder / SUMMARY, summary | {"files": listed})

    def in_memory(self, kind: type[E]) -> ExampleStore[E]:
        tokens = np.frombuffer(self._tokens.getvalue(), ID)
        return ExampleStore(kind, self._records.getvalue(), tokens, self._all_columns())

    def _all_columns(self) -> NDArray[Any]:
        return np.concatenate([np.empty(0, COLUMN), *self._columns])


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a stored folder. ValueError or OSError where a file is not what it was when it was written."""
    summary = read_json(folder / SUMMARY)
    if not isinstance(summary, dict) or not isinstance(listed := summary.get("files"), dict):
        raise ValueError(f"{SUMMARY} is not a summary")
    for name in FILES:
        if listed.get(name) != [(folder / name).stat().st_size, file_digest(folder / name)]:
            raise ValueError(f"{name} is not what was written")
    return summary


def open_store(folder: Path, kind: type[E]) -> ExampleStore[E]:
    """The examples of a stored folder, mapped into memory."""
    with (folder / RECORDS).open("rb") as file:
        records = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    tokens = np.memmap(folder / TOKENS, ID, mode="r")
    return ExampleStore(kind, records, tokens, np.load(folder / COLUMNS, allow_pickle=False))


def difficulties(trained: NDArray[Any], scores: NDArray[Any]) -> list[float]:
    """Of each example how difficult it is: short and highly rewarded is easy.

    Difficulty is the mean of two ranks, by trained tokens (fewest first) and by score
    (highest first); an example without a score (NaN) ranks in the middle.
    """
    found: list[float] = ((_ranks(trained.astype(float)) + _ranks(-scores)) / 2).tolist()
    return found


def _ranks(values: NDArray[Any]) -> NDArray[Any]:
    known = ~np.isnan(values)
    ranks = np.full(len(values), 0.5)
    different, place = np.unique(values[known], return_inverse=True)
    ranks[known] = place / max(1, len(different) - 1)
    return ranks


# From rows to prepared examples, in worker processes where there are many rows.
# Rows are independent of each other, and what a worker does not share it need not wait for: each gets a few
# neighbouring rows at a time. Results come back in the order of the rows, so the outcome does not depend on the
# number of workers.

Numbered = Iterable[tuple[int, Sample | RowError]]
# More workers than this only wait for the process that collects their results.
MOST_WORKERS = 16
# Chunks of rows in flight for each worker: the next one is there when one is done.
AHEAD = 3
PR_SET_PDEATHSIG = 1  # of prctl(2): the signal that a process gets when its parent ends


@dataclass(frozen=True)
class Preparation(Generic[E]):
    """How a record becomes an example. `make` raises RowError for one that cannot be trained on; `score` names
    the field of an example that a curriculum orders by.
    """

    builder: CallBuilder
    make: Callable[[Sample, CallSource], E]
    score: str

    def rows(self, raw: RawRows) -> Chunk:
        """The examples of some rows of a file."""
        return self.records(raw.file, raw.read())

    def records(self, file: str, found: Numbered) -> Chunk:
        """The examples of numbered records; `file` is what their places name."""
        chunk = Chunk()
        for line, sample in found:
            if isinstance(sample, RowError):
                chunk.skipped[sample.reason] += 1
                chunk.problems.append((file, line, sample.reason, str(sample)))
                continue
            calls = Ledger("calls")
            try:
                example = self.make(sample, CallSource(self.builder, calls))
            except RowError as error:
                chunk.rows.drop(error.reason)
                chunk.dropped.setdefault(error.reason, f"{file}:{line}: {error}")
                count_calls(chunk.calls, calls, 0, error.reason)
                if error.reason == "wrong_kind":
                    chunk.problems.append((file, line, error.reason, str(error)))
                continue
            chunk.add(replace(example, place=f"{file}:{line}"), getattr(example, self.score))
            chunk.rows.keep()
            chunk.hashed.append(to_json([sample, [(call.prompt_ids, call.completion_ids) for call in example.calls]]))
            count_calls(chunk.calls, calls, len(example.calls), "no_weight")
        return chunk


def num_workers() -> int:
    """Worker processes that are worth starting: one per core that this process may use."""
    if sys.platform != "linux":  # elsewhere a fork is not safe, and a new interpreter would load everything again
        return 1
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)))


def prepared(preparation: Preparation[Any], chunks: Iterator[RawRows], workers: int) -> Iterator[Chunk]:
    """The examples of all chunks in their order, prepared by `workers` processes, or here if that is one."""
    if workers <= 1:
        yield from map(preparation.rows, chunks)
        return
    with _pool(preparation, workers) as pool:
        waiting: deque[Future[Chunk]] = deque()
        for chunk in chunks:
            waiting.append(pool.submit(_prepare, chunk))
            if len(waiting) > AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def _pool(preparation: Preparation[Any], workers: int) -> Iterator[ProcessPoolExecutor]:
    """Forked workers: they have the tokenizer and its template from this process, and load nothing."""
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("fork"), initializer=_begin, initargs=(preparation, os.getpid())
    )
    try:
        with warnings.catch_warnings():
            # Other threads here do not matter: a worker parses, renders and encodes, and takes none of their locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pool.submit(os.getpid).result()  # all workers are forked now, before a progress bar has its thread
        yield pool
    except BrokenProcessPool:
        raise BoughError(
            "a process that prepares examples was killed, most likely because memory ran out; "
            "free some, or let fewer cores be used (taskset -c 0-3 bough …)"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_PREPARATION: list[Preparation[Any]] = []


def _begin(preparation: Preparation[Any], parent: int) -> None:
    """Makes a forked process a worker. It ends with its parent, and leaves Ctrl-C and the log to it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # killed in between
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()
    gc.freeze()  # its collector leaves alone, and so does not copy, what the parent has loaded
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a text at a time leaves nothing to share out to threads
    _PREPARATION[:] = [preparation]


def _prepare(chunk: RawRows) -> Chunk:
    return _PREPARATION[0].rows(chunk)
