"""Sources of rows: JSON Lines (plain, .zst, .gz, .xz), a JSON list, CSV, Parquet, a dataset saved or on the Hub.

Every source is a stream of (number, content): for text files the content is the bytes
of a line and the number that of the line, for tables and lists the content is a row as a dict.
The size of a row is limited: a small archive can be made to expand until it fills the memory.
"""

from __future__ import annotations

import csv
import io
import lzma
import re
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from bough.data import compressed
from bough.errors import InputError, RowError
from bough.files import open_file

TEXT_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
TABLE_SUFFIXES = (".csv", ".tsv")
PACKED_SUFFIXES = ("", *compressed.SUFFIXES)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
Content = bytes | dict[str, Any] | RowError
# A token takes about 26 bytes with its log-probability: a group of attempts with five million of them fits.
MAX_LINE = 128 << 20
# A row group of Parquet is read as a whole.
MAX_ROW_GROUP = 4 << 30
# Values of one row, on average: the longest conversations have a thousandth of it.
MAX_VALUES = 1 << 22
# The first bytes of a file, which say what it is.
PEEK = 1024
HUB_PATH = re.compile(r"hf:/[\w-][\w.-]*/[\w-][\w.-]*(/[\w-][\w.-]*)?")
READABLE = (
    "Bough reads JSON Lines (.jsonl, also .zst, .gz, .xz), a JSON list (.json), CSV with a header (.csv, .tsv), "
    "Parquet (.parquet), a saved Hugging Face dataset, or hf://org/name"
)
# How files begin that are not text; a pickle would run code if it were loaded.
BINARY = (
    b"PK\x03\x04", b"%PDF", b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"BZh", b"PAR1", b"ARROW1", b"SQLite",
    b"\x89PNG", b"\xff\xd8\xff", b"GGUF", b"\x93NUMPY", b"\x80",
)  # fmt: skip


def files(source: str | Path) -> list[Path]:
    """The files of a path: itself, or the shards of a folder in order of their names.

    The folder of a collection also contains settings and reports; only one of its files has trajectories.
    """
    path = Path(source)
    try:
        if is_hub(path) or is_dataset(path) or path.is_file():
            return [path]
        is_folder, known = path.is_dir(), path.exists()
        if is_folder and (collected := path / "trajectories.jsonl").is_file():
            return [collected]
        names = sorted(p.name for p in path.iterdir() if p.is_file() and p.name[0] != ".") if is_folder else []
    except (OSError, ValueError, RuntimeError) as error:  # no permission, a loop of links, a null byte
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not is_folder:
        why = "not a regular file; pipes and devices cannot be read" if known else "there is no such file or folder"
        raise InputError(f"{path}: {why}")
    endings = [text + packed for text in TEXT_SUFFIXES for packed in PACKED_SUFFIXES] + [".parquet"]
    names = [name for name in names if name.endswith(tuple(endings))]
    if odd := [name for name in names if any("\ud800" <= character <= "\udfff" for character in name)]:
        raise InputError(f"{path}: the name {odd[0]!a} is not UTF-8; rename the file")
    if not names:
        raise InputError(f"{path}: the folder contains no data file; looked for {', '.join(endings)}")
    return [path / name for name in names]


def is_dataset(path: Path) -> bool:
    """Whether the folder was written by `datasets.Dataset.save_to_disk`."""
    return (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file()


def is_hub(path: Path) -> bool:
    """Whether the path names a dataset on the Hub: hf://org/name, or hf://org/name/split."""
    return path.parts[:1] == ("hf:",)


def lines(path: Path, longest: int = MAX_LINE) -> Iterator[tuple[int, Content]]:
    """The numbered contents of one file, from 1; a RowError after the last good line if the file is cut off or damaged.

    A line of more than `longest` bytes is given as a RowError.
    """
    if is_dataset(path) or is_hub(path) or path.suffix == ".parquet":
        rows = _dataset_rows if is_dataset(path) or is_hub(path) else _parquet_rows
        yield from enumerate(rows(path), 1)
        return
    number = 0
    try:
        with _open(path) as stream:
            for number, content in _rows(path, stream, longest):
                yield number, content
    except EOFError as error:
        # Our own writer leaves a torn frame when it is killed; any other archive that ends early has lost rows.
        reason = "torn" if path.name.endswith(".jsonl.zst") else "damaged"
        raise RowError(reason, f"the file cannot be read after line {number}: {error}") from None
    except (OSError, lzma.LZMAError, zlib.error) as error:
        said = getattr(error, "strerror", None) or error
        raise RowError("damaged", f"the file cannot be read after line {number}: {said}") from None


def _open(path: Path) -> io.BufferedReader:
    """The text of a file. One that cannot be opened is an error, unlike bad rows, which may be skipped."""
    try:
        file = open_file(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if path.suffix not in compressed.SUFFIXES:
        return file
    return io.BufferedReader(compressed.Unpacked(file, path.suffix), 1 << 16)


def _rows(path: Path, stream: io.BufferedReader, longest: int) -> Iterator[tuple[int, Content]]:
    """The rows of an unpacked file, by its name and its first bytes."""
    begin = stream.peek(PEEK)[:PEEK].removeprefix(BYTE_ORDER_MARK)
    first_line = begin.partition(b"\n")[0]
    if any(suffix in TABLE_SUFFIXES for suffix in path.suffixes[-2:]):
        yield from _table(stream, longest)
    elif begin.lstrip()[:1] == b"[":
        # It is read as a whole. What is wrong with it costs all of its rows, so it cannot be skipped as one.
        text = stream.read(MAX_LINE + 1)
        if len(text) > MAX_LINE:
            raise InputError(f"{path}: the JSON list is longer than {MAX_LINE >> 20} MiB; write it as JSON Lines")
        try:
            found = from_json(text.removeprefix(BYTE_ORDER_MARK))
        except ValueError as error:
            raise InputError(f"{path}: the file begins as a JSON list but cannot be read as one: {error}") from None
        del text
        for number, row in enumerate(found, 1):
            good = isinstance(row, dict)
            yield number, row if good else RowError("not_json", "the element is JSON but not an object")
    # Zeros inside a row that begins as one are damage of that row.
    elif begin.startswith(BINARY) or (b"\0" in first_line and not first_line.startswith(b"{")):
        raise InputError(f"{path}: the file is not text, or its name has the wrong ending. {READABLE}")
    else:
        number = 0
        while line := stream.readline(longest + 1):  # the line end counts here
            number += 1
            if len(line) > longest and not line.endswith(b"\n"):
                while line and not line.endswith(b"\n"):
                    line = stream.readline(1 << 16)
                yield number, RowError("too_large", f"the line is longer than {longest >> 20} MiB")
                continue
            yield number, line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{path}: reading Parquet needs pyarrow; pip install 'bough[datasets]'") from None
    try:
        with _open(path) as file:
            table = pyarrow.parquet.ParquetFile(file)
            groups = [table.metadata.row_group(number) for number in range(table.num_row_groups)]
            # Of equal values only their number is written: a file of a kilobyte may unpack to any size.
            long = any(
                group.column(one).num_values > MAX_VALUES * group.num_rows
                for group in groups
                for one in range(group.num_columns)
            )
            if long or any(group.total_byte_size > MAX_ROW_GROUP for group in groups):
                raise RowError(
                    "too_large", f"a row group has more than {MAX_ROW_GROUP >> 30} GiB, or {MAX_VALUES:,} values a row"
                )
            for batch in table.iter_batches(batch_size=16):
                yield from batch.to_pylist()
    except (RowError, InputError):
        raise
    except Exception as error:  # pyarrow raises errors of many kinds for damaged bytes
        raise RowError("damaged", f"not a complete Parquet file: {_first_line(error)}") from None


def _dataset_rows(path: Path) -> Iterator[dict[str, Any]]:
    """A saved dataset, or one on the Hub, streamed; code that comes with it is never run."""
    try:
        import datasets
    except ImportError:
        raise InputError(f"{path}: reading a dataset needs datasets; pip install 'bough[datasets]'") from None
    if is_hub(path):
        if not HUB_PATH.fullmatch(str(path)):
            raise InputError(f"{path}: a dataset on the Hub is named hf://org/name or hf://org/name/split")
        name, split = "/".join(path.parts[1:3]), path.parts[3] if len(path.parts) > 3 else "train"
        try:
            yield from datasets.load_dataset(name, split=split, streaming=True)
        except Exception as error:  # of the network, the Hub, or the dataset
            raise InputError(f"hf://{name}, split {split}, cannot be read: {_first_line(error)}") from None
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


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


# Rows of a CSV file whose first line names the columns.
# Every cell is text; those of columns that formats expect as something else are read as JSON (numbers, true and
# false, messages). An empty cell is a missing value.

DELIMITERS = ",;\t"
FLAGS = ("label", "success")
JSON_COLUMNS = (
    *FLAGS, "reward", "margin", "reward_margin", "seed", "messages", "conversations", "tools", "rewards", "steps",
    "trajectories", "task_data",
)  # fmt: skip
# JSON where they look like a list of messages.
MAYBE_JSON = ("prompt", "completion", "chosen", "rejected", "preferred_output", "non_preferred_output", "history")


def _table(file: io.BufferedReader, longest: int) -> Iterator[tuple[int, Content]]:
    """Each row with the number of its first line. The lines of a row, whose quotes may span many, are limited."""
    # One limit for the whole process; the default of 128 KiB is too short for an episode.
    csv.field_size_limit(longest)
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    size = 0

    def limited() -> Iterator[str]:
        nonlocal size
        for line in chain([first], iter(lambda: text.readline(longest + 1), "")):
            size += len(line)
            if size > longest:
                raise RowError("too_large", f"a row is longer than {longest >> 20} MiB")
            yield line

    names, begin = list[str](), 1
    try:
        first = text.readline(longest + 1)
        # A header of one name has no delimiter; a comma is as good as any.
        lines = csv.reader(limited(), delimiter=max(DELIMITERS, key=first.count), strict=True)
        for cells in lines:
            size = 0
            if not any(cells):
                pass
            elif not names:
                names = [cell.strip() for cell in cells]
                if len(set(names)) < len(names) or "" in names:
                    raise RowError("wrong_type", f"the first line must name each column once: {', '.join(names):.200}")
            elif len(cells) != len(names):
                yield begin, RowError("wrong_length", f"the row has {len(cells)} cells and the header {len(names)}")
            else:
                yield begin, _row(names, cells)
            begin = lines.line_num + 1
    except UnicodeDecodeError as error:
        raise RowError("not_utf8", f"not UTF-8: byte {error.object[error.start]:#04x}") from None
    except csv.Error as error:
        raise RowError("damaged", f"not CSV after line {begin - 1}: {error}") from None


def _row(names: list[str], cells: list[str]) -> dict[str, Any] | RowError:
    row: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=True):
        row[name] = cell if cell.strip() else None
        if row[name] and (name in JSON_COLUMNS or (name in MAYBE_JSON and cell.lstrip().startswith("["))):
            try:
                row[name] = from_json(cell.strip().lower() if name in FLAGS else cell)
                if name in FLAGS and row[name] in (0, 1):
                    row[name] = bool(row[name])
            except ValueError:
                if name in JSON_COLUMNS:
                    allowed = "true or false" if name in FLAGS else "JSON"
                    return RowError("wrong_type", f'"{name}" is {cell!r:.40}; it must be {allowed}')
    return row
