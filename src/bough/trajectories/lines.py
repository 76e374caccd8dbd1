"""Where rows come from: JSON Lines (plain, .zst, .gz, .xz), a JSON list, Parquet, a data set saved or on the hub.

Every source is a stream of (number, content): for text files the content is the bytes
of a line and the number is the line's, for tables it is a row as a dict. Nothing is held
but the line at hand (a JSON list excepted, which JSON cannot stream).
"""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from bough.errors import InputError, RowError
from bough.trajectories import zstd

TEXT_SUFFIXES = (".jsonl", ".ndjson", ".json")
PACKED_SUFFIXES = ("", ".zst", ".gz", ".xz")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
Content = bytes | dict[str, Any]


def files(source: str | Path) -> list[Path]:
    """The files behind a path: itself, or the shards of a folder in order of name.

    A collection's folder holds settings and reports too; only one of its files has trajectories.
    """
    path = Path(source)
    if is_dataset(path) or is_hub(path) or path.is_file():
        return [path]
    if not path.exists():
        raise InputError(f"{path}: there is no such file or folder")
    if (collected := path / "trajectories.jsonl").is_file():
        return [collected]
    endings = [text + packed for text in TEXT_SUFFIXES for packed in PACKED_SUFFIXES] + [".parquet"]
    names = sorted(p.name for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    shards = [path / name for name in names if name.endswith(tuple(endings))]
    if not shards:
        raise InputError(f"{path}: the folder holds no data file; looked for {', '.join(endings)}")
    return shards


def lines(path: Path) -> Iterator[tuple[int, Content]]:
    """The numbered contents of one file, from 1; a RowError after the last good line where a file is cut or damaged."""
    if is_dataset(path) or is_hub(path):
        yield from enumerate(_dataset_rows(path), 1)
    elif path.suffix == ".parquet":
        yield from enumerate(_parquet_rows(path), 1)
    else:
        yield from _text_lines(path)


def is_dataset(path: Path) -> bool:
    """Whether the folder was written by `datasets.Dataset.save_to_disk`."""
    return (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file()


def is_hub(path: Path) -> bool:
    """Whether the path names a data set on the hub: hf://org/name, or hf://org/name/split."""
    return path.parts[:1] == ("hf:",)


def _text_lines(path: Path) -> Iterator[tuple[int, Content]]:
    number = 0
    try:
        with _open(path) as stream:
            if stream.peek(64).removeprefix(BYTE_ORDER_MARK).lstrip()[:1] == b"[":
                yield from _listed(stream.read())
                return
            for number, line in enumerate(stream, 1):
                yield number, line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
    except EOFError as error:
        # Our own writer leaves a torn frame when it is killed; any other archive that ends early has lost rows.
        reason = "torn" if path.suffix == ".zst" else "damaged"
        raise RowError(reason, f"the file cannot be read after line {number}: {error}") from None
    except (OSError, lzma.LZMAError, zlib.error) as error:
        raise RowError("damaged", f"the file cannot be read after line {number}: {error}") from None


def _open(path: Path) -> io.BufferedReader:
    if path.suffix == ".zst":
        return io.BufferedReader(zstd.TextStream(path.open("rb")))
    if path.suffix == ".gz":
        return io.BufferedReader(gzip.GzipFile(path))
    if path.suffix == ".xz":
        return io.BufferedReader(lzma.LZMAFile(path))
    return path.open("rb")


def _listed(text: bytes) -> Iterator[tuple[int, Content]]:
    try:
        rows = from_json(text.removeprefix(BYTE_ORDER_MARK))
    except ValueError as error:
        raise RowError("not_json", f"the file begins as a JSON list but is none: {error}") from None
    yield from enumerate(rows, 1)


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{path}: reading Parquet needs pyarrow; pip install 'bough[datasets]'") from None
    try:
        table = pyarrow.parquet.ParquetFile(path)
        for batch in table.iter_batches(batch_size=256):
            yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise RowError("damaged", f"not a whole Parquet file: {error}") from None


def _dataset_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise InputError(f"{path}: reading a saved data set needs datasets; pip install 'bough[datasets]'") from None
    if is_hub(path):
        yield from _hub_rows(path)
        return
    loaded = datasets.load_from_disk(str(path))
    if isinstance(loaded, datasets.DatasetDict):
        splits = ", ".join(str(path / name) for name in loaded)
        raise InputError(f"{path}: the data set has splits; name one of {splits}")
    yield from loaded


def _hub_rows(path: Path) -> Iterator[dict[str, Any]]:
    """A data set of the hub, streamed; code that comes with one is never run."""
    import datasets

    name, split = "/".join(path.parts[1:3]), path.parts[3] if len(path.parts) > 3 else "train"
    try:
        yield from datasets.load_dataset(name, split=split, streaming=True)
    except (OSError, ValueError, datasets.exceptions.DatasetNotFoundError) as error:
        raise InputError(f"hf://{name}, split {split}, cannot be read: {error}") from None
