"""Prepared examples in a compact form: token arrays, memory-mapped where they are on disk, and one JSON line each.

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
import io
import logging
import mmap
import multiprocessing
import os
import signal
import sys
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json, to_json

from bough.data.base import Sample
from bough.data.bough import common_prefix
from bough.data.reader import RawRows
from bough.errors import BoughError, RowError
from bough.files import read_json, write_json
from bough.ledger import Ledger
from bough.methods.examples import SUMMARY
from bough.models.resolve import file_digest
from bough.training.method import CallSource, Example, count_calls
from bough.types import Call

if TYPE_CHECKING:
    from bough.chat.builder import CallBuilder


RECORDS, TOKENS, COLUMNS = "records.jsonl", "tokens.bin", "columns.npy"
ID = np.dtype("<u4")
# `score` is what a curriculum orders by, NaN where there is none.
COLUMN = np.dtype([("line", "<i8"), ("token", "<i8"), ("trained", "<i8"), ("score", "<f8"), ("cluster", "S32")])
E = TypeVar("E", bound=Example)


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


class ExampleStore(Sequence[E], Generic[E]):
    """Examples of one class, read from their stored form."""

    def __init__(self, kind: type[E], records: Any, tokens: NDArray[Any], columns: NDArray[Any]) -> None:
        self._kind, self._records, self._tokens = kind, records, tokens
        self._lines = np.concatenate([[0], np.cumsum(columns["line"])])
        self._starts = np.concatenate([[0], np.cumsum(columns["token"])])
        self.clusters: list[int] = _codes(columns["cluster"])
        self.difficulties: list[float] = difficulties(columns["trained"], columns["score"])

    def __len__(self) -> int:
        return len(self.difficulties)

    @overload
    def __getitem__(self, index: int) -> E: ...

    @overload
    def __getitem__(self, index: slice) -> list[E]: ...

    def __getitem__(self, index: int | slice) -> E | list[E]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        record = from_json(bytes(self._records[self._lines[i] : self._lines[i + 1]]))
        calls = list(self._calls(record["calls"], self._tokens[self._starts[i] : self._starts[i + 1]]))
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in record["example"].items()}
        return self._kind(**values | {"calls": calls, "difficulty": self.difficulties[i]})

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


FILES = (RECORDS, TOKENS, COLUMNS)


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


def _codes(names: NDArray[Any]) -> list[int]:
    """A number for each name; equal names have equal numbers."""
    codes: list[int] = np.unique(names, return_inverse=True)[1].tolist()
    return codes


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
