"""From rows to prepared examples, in worker processes where there are many rows.

Rows are independent of each other, and what a worker does not share it need not wait for: each
gets a few neighbouring rows at a time. Results come back in the order of the rows, so the
outcome does not depend on the number of workers.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import multiprocessing
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic_core import to_json

from bough.errors import BoughError, RowError
from bough.formats.base import Sample
from bough.ledger import Ledger
from bough.methods.base import Example
from bough.methods.call_source import CallSource, count_calls
from bough.methods.example_store import Chunk
from bough.trajectories.reader import RawRows

if TYPE_CHECKING:
    from bough.calls.builder import CallBuilder

E = TypeVar("E", bound=Example)
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
