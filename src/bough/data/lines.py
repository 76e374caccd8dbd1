"""Sources of rows: JSON Lines (plain, .zst, .gz, .xz), a JSON list, CSV, Parquet, logs, a dataset saved or on the Hub.

Every source is a stream of (number, content): for text files the content is the bytes
of a line and the number that of the line, for tables the content is a row as a dict. Only
the current row is in memory, and its size is limited: a small archive can be made to
expand until it fills the memory.
"""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import os
import re
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, BinaryIO

from pydantic_core import from_json
from typing_extensions import Buffer

from bough.data import compressed, inspect
from bough.errors import InputError, RowError
from bough.files import open_file

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
        yield from inspect.archive_samples(stream, longest, _most_unpacked(stream))
    elif any(suffix in TABLE_SUFFIXES for suffix in suffixes):
        yield from rows(stream, longest)
    elif begin.lstrip()[:1] == b"[":
        stream.read(stream.peek(PEEK).index(b"[") + 1)
        yield from enumerate(elements(stream, longest), 1)
    elif inspect.is_json_log(begin):
        yield from inspect.json_samples(stream)
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
    """The file. One that cannot be opened is an error, unlike bad rows, which may be skipped."""
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
            self._raw = compressed.ZstdStream(file) if suffix == ".zst" else compressed.XzStream(file)
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


# Rows of a CSV file whose first line names the columns.
# Every cell is text; those of columns that formats expect as something else are read as JSON (numbers, true and
# false, messages). An empty cell is a missing value.

DELIMITERS = ",;\t"
TRUTH = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
FLAGS = ("label", "success")
NUMBERS = ("reward", "margin", "reward_margin", "seed")
# Always JSON, and JSON where they look like a list of messages.
NESTED = ("messages", "conversations", "tools", "rewards", "steps", "trajectories", "task_data")
MAYBE_NESTED = ("prompt", "completion", "chosen", "rejected", "preferred_output", "non_preferred_output", "history")


def rows(file: BinaryIO, longest: int) -> Iterator[tuple[int, dict[str, Any] | RowError]]:
    """Each row as a dictionary with the number of its first line, or what is wrong with it."""
    # One limit for the whole process; the default of 128 KiB is too short for an episode.
    csv.field_size_limit(longest)
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        first = text.readline(longest + 1)
        source = _Lines(first, text, longest)
        # A header of one name has no delimiter; a comma is as good as any.
        lines = csv.reader(source, delimiter=max(DELIMITERS, key=first.count), strict=True)
        yield from _parsed(lines, source)
    except UnicodeDecodeError as error:
        raise RowError("not_utf8", f"not UTF-8: byte {error.object[error.start]:#04x}") from None


class _Lines:
    """The lines of a file. Those of one row, whose quotes may span many, together have at most `longest` characters."""

    def __init__(self, first: str, rest: io.TextIOWrapper, longest: int) -> None:
        self._first, self._rest, self._longest = first, rest, longest
        self.size = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line, self._first = self._first or self._rest.readline(self._longest + 1), ""
        self.size += len(line)
        if self.size > self._longest:
            raise RowError("too_large", f"a row is longer than {self._longest >> 20} MiB")
        if not line:
            raise StopIteration
        return line


def _parsed(lines: Any, source: _Lines) -> Iterator[tuple[int, dict[str, Any] | RowError]]:
    names, begin = list[str](), 1
    try:
        for cells in lines:
            source.size = 0
            if not any(cells):
                pass
            elif not names:
                names = _names(cells)
            elif len(cells) != len(names):
                yield begin, RowError("wrong_length", f"the row has {len(cells)} cells and the header {len(names)}")
            else:
                yield begin, _row(names, cells)
            begin = lines.line_num + 1
    except csv.Error as error:
        raise RowError("damaged", f"not CSV after line {begin - 1}: {error}") from None


def _names(cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    if len(set(names)) < len(names) or "" in names:
        raise RowError("wrong_type", f"the first line must name each column once; it has {', '.join(names)!r:.200}")
    return names


def _row(names: list[str], cells: list[str]) -> dict[str, Any] | RowError:
    try:
        return {name: _value(name, cell) for name, cell in zip(names, cells, strict=True)}
    except ValueError as error:
        return RowError("wrong_type", str(error))


def _value(name: str, cell: str) -> Any:
    text = cell.strip()
    if not text:
        return None
    if name in FLAGS:
        if text.lower() not in TRUTH:
            raise ValueError(f'"{name}" is {text!r:.40}; it must be true or false')
        return TRUTH[text.lower()]
    if name in NUMBERS or name in NESTED:
        try:
            return from_json(text)
        except ValueError:
            raise ValueError(f'"{name}" is {text!r:.40}; it must be JSON') from None
    if name in MAYBE_NESTED and text.startswith("["):
        try:
            return from_json(text)
        except ValueError:
            return cell
    return cell


# The elements of a JSON list, one at a time: only the current element is in memory.

PIECE = 1 << 16
# Outside a string: a complete string, the start of one that continues in the next piece, brackets and commas.
_INSIDE_ELEMENT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{}]', re.DOTALL)
_BETWEEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
# Inside a string: the rest of it.
_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+(?:(?P<end>")|(?P<backslash>\\)?\Z)', re.DOTALL)


def elements(stream: IO[bytes], longest: int) -> Iterator[bytes | RowError]:
    """The text of each element, or its RowError. The stream is positioned after the opening bracket."""
    scan = _Scan()
    element, count, too_long = bytearray(), 0, False
    while piece := stream.read(PIECE):
        start = 0
        for end, mark in scan.ends(piece):
            element += piece[start:end]
            start = end + 1
            if not _blank(element) or too_long or count or mark == b",":
                count += 1
                yield _whole(element, longest, too_long)
            element.clear()
            too_long = False
            if mark != b",":
                rest = chain([mark.strip(b"]"), piece[start:]], iter(lambda: stream.read(PIECE), b""))
                if any(more.strip() for more in rest):
                    raise RowError("not_json", "there is text after the end of the JSON list")
                return
        element += piece[start:]
        if len(element) > longest:
            too_long = True
            element.clear()
    raise RowError("not_json", "the file starts with a JSON list that does not end")


def _whole(element: bytearray, longest: int, too_long: bool) -> bytes | RowError:
    if too_long or len(element) > longest:
        return RowError("too_large", f"the element is longer than {longest >> 20} MiB")
    if _blank(element):
        return RowError("not_json", "not JSON: an element of the list is empty")
    return bytes(element) + b"\n"


def _blank(text: bytearray) -> bool:
    return not text or text.isspace()


class _Scan:
    """Finds the ends of elements, piece by piece."""

    def __init__(self) -> None:
        self.depth, self.in_string, self.escaped = 0, False, False

    def ends(self, piece: bytes) -> Iterator[tuple[int, bytes]]:
        """The end of each element that ends in this piece, and the character that ends it: a comma or a bracket."""
        at = self._rest_of_string(piece, 0) if self.in_string else 0
        while found := (_INSIDE_ELEMENT if self.depth else _BETWEEN).search(piece, at):
            at, mark = found.end(), found[0]
            if mark == b'"':
                at = self._rest_of_string(piece, at)
            elif mark in b"[{":
                self.depth += 1
            elif mark in b"]}" and self.depth:
                self.depth -= 1
            elif mark in b"]},":
                yield found.start(), mark

    def _rest_of_string(self, piece: bytes, at: int) -> int:
        """The position after the string that starts before `at`; the end of the piece if the string continues."""
        found = _REST.match(piece, at + self.escaped)
        assert found is not None
        self.in_string, self.escaped = found["end"] is None, found["backslash"] is not None
        return found.end()


# What a file is that is not a data file, told by its first bytes: one sentence instead of a thousand bad lines.

READABLE = (
    "Bough reads JSON Lines (.jsonl, also .zst, .gz, .xz), a JSON list (.json), CSV with a header (.csv, .tsv), "
    "Parquet (.parquet), inspect_ai logs (.eval, .json), a saved Hugging Face dataset, or hf://org/name"
)
# First bytes, and what a file that has them is.
KINDS: dict[bytes, str] = {
    b"PK\x03\x04": "a ZIP archive (Excel and Word files are such archives too); unpack it, or save the table as CSV",
    b"%PDF": "a PDF document",
    b"\x1f\x8b": "gzip data; its name must end in .gz",
    b"\xfd7zXZ": "xz data; its name must end in .xz",
    b"\x28\xb5\x2f\xfd": "Zstandard data; its name must end in .zst",
    b"BZh": "bzip2 data; unpack it",
    b"PAR1": "Parquet data; its name must end in .parquet",
    b"ARROW1": "an Arrow file; save the dataset with save_to_disk, or as Parquet",
    b"SQLite format 3": "an SQLite database; export the table as CSV",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"GGUF": "a model, not data; name it with --model",
    b"\x93NUMPY": "a NumPy array",
    b"\x80\x02": "a Python pickle, which runs code when it is loaded; save the data as JSON Lines",
    b"\x80\x03": "a Python pickle, which runs code when it is loaded; save the data as JSON Lines",
    b"\x80\x04": "a Python pickle, which runs code when it is loaded; save the data as JSON Lines",
    b"\x80\x05": "a Python pickle, which runs code when it is loaded; save the data as JSON Lines",
    b"<?xml": "XML",
    b"<!DOCTYPE": "a web page",
    b"<html": "a web page",
}


def not_data(begin: bytes) -> str | None:
    """A sentence for a file that begins so and holds no rows; None for one that may be text."""
    for magic, kind in KINDS.items():
        if begin.startswith(magic):
            return f"the file is {kind}. {READABLE}"
    first_line = begin[:1024].partition(b"\n")[0]
    if b"\0" in first_line and not first_line.startswith((b"{", b"[")):  # a damaged row is only that row
        return f"the file is binary data of an unknown kind. {READABLE}"
    return None
