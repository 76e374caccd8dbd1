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

import io
import mmap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json, to_json

from bough.disk import read_json, write_json
from bough.formats.bough import common_prefix
from bough.ledger import Ledger
from bough.methods.base import Example
from bough.methods.example_cache import SUMMARY
from bough.models.digest import file_digest
from bough.types import Call

RECORDS, TOKENS, COLUMNS = "records.jsonl", "tokens.bin", "columns.npy"
ID = np.dtype("<u4")
# `score` is what a curriculum orders by, NaN where there is none.
COLUMN = np.dtype([("line", "<i8"), ("token", "<i8"), ("trained", "<i8"), ("score", "<f8"), ("cluster", "S32")])
E = TypeVar("E", bound=Example)


@dataclass
class Chunk:
    """Examples of neighbouring rows in their stored form, and what came of the rows that are none.

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
            if call.temperature:
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
