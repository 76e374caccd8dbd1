"""Sources of rows: JSON Lines (plain, .zst, .gz, .xz), a JSON list, CSV, Parquet, logs, a dataset saved or on the Hub.

Every source is a stream of (number, content): for text files the content is the bytes
of a line and the number that of the line, for tables the content is a row as a dict. Only
the current row is in memory, and its size is limited: a small archive can be made to
expand until it fills the memory.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typing_extensions import Buffer

from bough.disk import open_file
from bough.errors import InputError, RowError
from bough.trajectories import csv_table, inspect_log, json_list, xz, zstd
from bough.trajectories.file_kind import not_data

TEXT_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
TABLE_SUFFIXES = (".csv", ".tsv")
LOG_SUFFIX = ".eval"
PACKED_SUFFIXES = ("", ".zst", ".gz", ".xz")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
Content = bytes | dict[str, Any] | RowError
# A token takes about 26 bytes with its log-probability: a group of attempts with five million of them fits.
MAX_LINE = 128 << 20
# The first bytes of a file, which say what it is.
PEEK = 1024
# Text shrinks to a tenth or a hundredth. A file that expands to more than both limits is not a data file.
MAX_UNPACKED, MAX_RATIO = 1 << 30, 1000
# A row group is always unpacked as a whole.
MAX_ROW_GROUP = 4 << 30
HUB_PATH = re.compile(r"hf:/[\w-][\w.-]*/[\w-][\w.-]*(/[\w-][\w.-]*)?")


def files(source: str | Path) -> list[Path]:
    """The files of a path: itself, or the shards of a folder in order of their names.

    The folder of a collection also contains settings and reports; only one of its files has trajectories.
    """
    path = Path(source)
    try:
        if is_hub(path) or is_dataset(path) or path.is_file():
            return [path]
        if path.is_dir():
            return _shards(path)
        known = path.exists()
    except (OSError, ValueError, RuntimeError) as error:  # no permission, a loop of links, a null byte
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if known:
        raise InputError(f"{path}: not a regular file; pipes and devices cannot be read")
    raise InputError(f"{path}: there is no such file or folder")


def _shards(path: Path) -> list[Path]:
    if (collected := path / "trajectories.jsonl").is_file():
        return [collected]
    endings = [text + packed for text in TEXT_SUFFIXES for packed in PACKED_SUFFIXES] + [".parquet", LOG_SUFFIX]
    names = sorted(p.name for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    names = [name for name in names if name.endswith(tuple(endings))]
    shards = [path / name for name in names]
    if odd := [name for name in names if any("\ud800" <= character <= "\udfff" for character in name)]:
        raise InputError(f"{path}: the name {odd[0]!a} is not UTF-8; rename the file")
    if not shards:
        raise InputError(f"{path}: the folder contains no data file; looked for {', '.join(endings)}")
    return shards


def lines(path: Path, longest: int = MAX_LINE) -> Iterator[tuple[int, Content]]:
    """The numbered contents of one file, from 1; a RowError after the last good line if the file is cut off or damaged.

    A line of more than `longest` bytes is given as a RowError.
    """
    if is_dataset(path) or is_hub(path):
        yield from enumerate(_dataset_rows(path), 1)
    elif path.suffix == ".parquet":
        yield from enumerate(_parquet_rows(path), 1)
    else:
        yield from _text_lines(path, longest)


def is_dataset(path: Path) -> bool:
    """Whether the folder was written by `datasets.Dataset.save_to_disk`."""
    return (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file()


def is_hub(path: Path) -> bool:
    """Whether the path names a dataset on the Hub: hf://org/name, or hf://org/name/split."""
    return path.parts[:1] == ("hf:",)


def _text_lines(path: Path, longest: int) -> Iterator[tuple[int, Content]]:
    number = 0
    try:
        with _open(path) as stream:
            for number, content in _rows(path, stream, longest):
                yield number, content
    except EOFError as error:
        # Our own writer leaves a torn frame when it is killed; any other archive that ends early has lost rows.
        reason = "torn" if path.suffix == ".zst" else "damaged"
        raise RowError(reason, f"the file cannot be read after line {number}: {error}") from None
    except (OSError, lzma.LZMAError, zlib.error) as error:
        said = getattr(error, "strerror", None) or error
        raise RowError("damaged", f"the file cannot be read after line {number}: {said}") from None


def _rows(path: Path, stream: io.BufferedReader, longest: int) -> Iterator[tuple[int, Content]]:
    """The rows of an unpacked file, by its name and its first bytes."""
    begin = stream.peek(PEEK)[:PEEK].removeprefix(BYTE_ORDER_MARK)
    suffixes = path.suffixes[-2:]
    if LOG_SUFFIX in suffixes[-1:]:
        yield from inspect_log.archive_samples(stream, longest, _most_unpacked(stream))
    elif any(suffix in TABLE_SUFFIXES for suffix in suffixes):
        yield from csv_table.rows(stream, longest)
    elif begin.lstrip()[:1] == b"[":
        stream.read(stream.peek(PEEK).index(b"[") + 1)
        yield from enumerate(json_list.elements(stream, longest), 1)
    elif inspect_log.is_json_log(begin):
        yield from inspect_log.json_samples(stream)
    elif said := not_data(begin):
        raise InputError(f"{path}: {said}")
    else:
        yield from _json_lines(stream, longest)


def _json_lines(stream: io.BufferedReader, longest: int) -> Iterator[tuple[int, Content]]:
    number = 0
    while line := stream.readline(longest + 1):  # the line end counts here
        number += 1
        if len(line) > longest and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = stream.readline(1 << 16)
            yield number, RowError("too_large", f"the line is longer than {longest >> 20} MiB")
            continue
        yield number, line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line


def _open(path: Path) -> io.BufferedReader:
    file = _opened(path)
    if path.suffix not in PACKED_SUFFIXES[1:]:
        return file
    return io.BufferedReader(_Unpacked(file, path.suffix), 1 << 16)


def _opened(path: Path) -> io.BufferedReader:
    """The file. One that cannot be opened is the user's to see to: it is no file of bad rows, which may be skipped."""
    try:
        return open_file(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _most_unpacked(file: io.BufferedReader) -> int:
    return max(MAX_UNPACKED, MAX_RATIO * os.fstat(file.fileno()).st_size)


class _Unpacked(io.RawIOBase):
    """The unpacked content of `file`, up to a limit that depends on its size."""

    def __init__(self, file: io.BufferedReader, suffix: str) -> None:
        self._file = file
        self._raw: Any = gzip.GzipFile(fileobj=file) if suffix == ".gz" else None
        if self._raw is None:
            self._raw = zstd.ZstdStream(file) if suffix == ".zst" else xz.XzStream(file)
        self._left = _most_unpacked(file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        count: int = self._raw.readinto(buffer)
        self._left -= count
        if self._left < 0:
            raise OSError(f"it unpacks to more than {MAX_RATIO} times its size; it is not a data file")
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{path}: reading Parquet needs pyarrow; pip install 'bough[datasets]'") from None
    try:
        with _opened(path) as file:
            table = pyarrow.parquet.ParquetFile(file)
            groups = [table.metadata.row_group(number) for number in range(table.num_row_groups)]
            if any(group.total_byte_size > MAX_ROW_GROUP for group in groups):
                raise RowError("too_large", f"a row group unpacks to more than {MAX_ROW_GROUP >> 30} GiB")
            for batch in table.iter_batches(batch_size=16):
                yield from batch.to_pylist()
    except (RowError, InputError):
        raise
    except Exception as error:  # pyarrow raises errors of many kinds for damaged bytes
        raise RowError("damaged", f"not a complete Parquet file: {_first_line(error)}") from None


def _dataset_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise InputError(f"{path}: reading a saved dataset needs datasets; pip install 'bough[datasets]'") from None
    if is_hub(path):
        yield from _hub_rows(path)
        return
    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:  # a damaged folder can raise any error
        raise InputError(f"{path}: not a complete dataset: {_first_line(error)}") from None
    if isinstance(loaded, datasets.DatasetDict):
        splits = ", ".join(str(path / name) for name in loaded)
        raise InputError(f"{path}: the dataset has splits; choose one of {splits}")
    try:
        yield from loaded
    except Exception as error:
        raise RowError("damaged", f"the rest of the dataset cannot be read: {_first_line(error)}") from None


def _hub_rows(path: Path) -> Iterator[dict[str, Any]]:
    """A dataset on the Hub, streamed; code that comes with it is never run."""
    import datasets

    if not HUB_PATH.fullmatch(str(path)):
        raise InputError(f"{path}: a dataset on the Hub is named hf://org/name or hf://org/name/split")
    name, split = "/".join(path.parts[1:3]), path.parts[3] if len(path.parts) > 3 else "train"
    try:
        yield from datasets.load_dataset(name, split=split, streaming=True)
    except Exception as error:  # of the network, the Hub, or the dataset
        raise InputError(f"hf://{name}, split {split}, cannot be read: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
