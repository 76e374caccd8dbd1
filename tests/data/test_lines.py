import errno
import gzip
import json
import lzma
import os
import pickle
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from bough.data import compressed
from bough.data import lines as lines_module
from bough.data.reader import Reader, read
from bough.errors import InputError
from tests.data.bombs import gzip_bomb, token_bomb, xz_bomb, zstd_bomb

ROWS = [
    {"messages": [{"role": "user", "content": f"Hi {i} ☃"}, {"role": "assistant", "content": "Hello"}]}
    for i in range(5)
]
TEXT = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.jsonl"
    path.write_bytes(TEXT)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl.gz", gzip.compress(TEXT)),
        ("a.jsonl.xz", lzma.compress(TEXT[:99]) + b"\0" * 65_600 + lzma.compress(TEXT[99:])),
        ("a.jsonl.zst", zstandard.compress(TEXT)),
        ("bom.jsonl", b"\xef\xbb\xbf" + TEXT),
        ("crlf.jsonl", TEXT.replace(b"\n", b"\r\n")),
        ("list.json", json.dumps(ROWS, indent=1).encode()),
    ],
)
def test_the_same_rows_come_out_of_every_wrapping(tmp_path: Path, plain: Path, name: str, content: bytes):
    (tmp_path / name).write_bytes(content)
    assert list(read(tmp_path / name)) == list(read(plain))


GREEDY = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 29}]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl.xz", lzma.compress(TEXT, filters=GREEDY), "[Mm]emory"),
        ("a.jsonl.xz", b"", "empty"),
        ("a.json.zst", zstandard.compress(json.dumps(ROWS).encode())[:-9], "cut off"),
    ],
)
def test_an_archive_that_is_greedy_or_lost_rows_is_an_error(tmp_path: Path, name: str, content: bytes, said: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"cannot be read after line 0: .*{said}"):
        list(read(tmp_path / name))


def test_of_a_collections_folder_only_the_trajectories_are_read_and_of_any_folder_nothing_hidden(
    tmp_path: Path, plain: Path
):
    (tmp_path / ".plain.jsonl.999.jsonl").write_bytes(TEXT)
    assert len(list(read(tmp_path))) == 5
    (tmp_path / "report.json").write_text('{"episodes": 5}')
    plain.rename(tmp_path / "trajectories.jsonl")
    assert len(list(read(tmp_path))) == 5


@pytest.mark.parametrize(
    ("ending", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".zst", zstandard.compress)]
)
def test_a_damaged_archive_stops_a_strict_reader_and_is_counted_by_a_lenient_one(
    tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]
):
    path = tmp_path / f"a.jsonl{ending}"
    packed = bytearray(pack(TEXT + os.urandom(3000).hex().encode()))
    packed[-1500:] = b"\xff" * 1500
    path.write_bytes(packed)
    reader = Reader(path, on_error="skip")
    assert sum(1 for _ in reader) + reader.skipped.total() == reader.rows
    assert reader.skipped["damaged"] == 1
    with pytest.raises(InputError, match="cannot be read after line"):
        list(read(path))


def test_parquet_and_saved_data_sets_read_the_same(tmp_path: Path, plain: Path):
    datasets = pytest.importorskip("datasets", reason="the datasets extra is not installed")
    loaded = datasets.Dataset.from_list(ROWS)
    loaded.to_parquet(tmp_path / "a.parquet")
    loaded.save_to_disk(tmp_path / "saved")
    assert list(read(tmp_path / "a.parquet")) == list(read(plain))
    assert list(read(tmp_path / "saved")) == list(read(plain))
    datasets.DatasetDict({"train": loaded}).save_to_disk(tmp_path / "splits")
    with pytest.raises(InputError, match="splits/train"):
        list(read(tmp_path / "splits"))
    assert list(read(tmp_path / "splits" / "train")) == list(read(plain))
    (tmp_path / "a.parquet").write_bytes(b"not parquet")
    with pytest.raises(InputError, match=r"a\.parquet:1: not a complete Parquet file"):
        list(read(tmp_path / "a.parquet"))


def test_a_data_set_of_the_hub_is_streamed(tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch):
    """Loaded by the same call as from the hub; a folder of that name stands in for it."""
    pytest.importorskip("datasets", reason="the datasets extra is not installed")
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_bytes(TEXT)
    monkeypatch.chdir(tmp_path)
    assert list(read("hf://org/name")) == list(read(plain))
    assert list(read("hf://org/name/train")) == list(read(plain))
    with pytest.raises(InputError, match="hf://org/name, split test, cannot be read"):
        list(read("hf://org/name/test"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl.zst", zstd_bomb(2000, start=TEXT, end=b"\n" + TEXT)),
        ("a.jsonl.gz", gzip.compress(TEXT) + gzip_bomb(100)),
        ("a.jsonl.xz", lzma.compress(TEXT) + xz_bomb(100)),
    ],
)  # fmt: skip
def test_a_small_file_that_unpacks_to_a_huge_one_is_read_in_little_memory(
    tmp_path: Path, name: str, content: bytes, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(compressed, "MAX_UNPACKED", 64 << 20)
    monkeypatch.setattr(compressed, "MAX_RATIO", 100)
    tracemalloc.start()
    try:
        reader = Reader(tmp_path / name, on_error="skip")
        assert len(list(reader)) == 5
        assert tracemalloc.get_traced_memory()[1] < 160 << 20
    finally:
        tracemalloc.stop()
    assert reader.skipped == {"damaged": 1}
    with pytest.raises(InputError, match=rf"{name}:6: the file cannot be read after line 5: it unpacks to more than"):
        list(read(tmp_path / name))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst", "a.jsonl.gz", "a.jsonl.xz"])
def test_a_line_that_is_too_long_is_named_and_the_next_is_read(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    first, *others = (json.dumps(row).encode() for row in ROWS)
    rows = [first, b'{"long": "' + b"x" * (3 << 20) + b'"}', *others]
    text = b"".join(row + b"\n" for row in rows)
    pack = {".zst": zstandard.compress, ".gz": gzip.compress, ".xz": lzma.compress}.get(Path(name).suffix, bytes)
    (tmp_path / name).write_bytes(pack(text))
    monkeypatch.setattr(lines_module.lines, "__defaults__", (1 << 20,))
    reader = Reader(tmp_path / name, on_error="skip")
    assert len(list(reader)) == 5 and reader.skipped == {"too_large": 1}
    with pytest.raises(InputError, match=rf"{name}:2: the line is longer than 1 MiB"):
        list(read(tmp_path / name))


def test_a_line_of_just_the_longest_length_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    longest = max(map(len, TEXT.splitlines()))
    monkeypatch.setattr(lines_module.lines, "__defaults__", (longest,))
    for name, text in (("a.jsonl", TEXT), ("b.jsonl", TEXT.rstrip(b"\n"))):
        (tmp_path / name).write_bytes(text)
        assert len(list(read(tmp_path / name))) == 5


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_a_file_without_permission_is_no_bad_row_to_skip(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: Path) -> None:  # root may open any file
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    (tmp_path / name).touch()
    monkeypatch.setattr(lines_module, "open_file", refuse)
    with pytest.raises(InputError, match=f"{name}: cannot be read: Permission denied"):
        list(Reader(tmp_path / name, on_error="skip"))


def test_a_history_that_is_shared_over_and_over_is_refused(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(token_bomb(9000))  # 81 million tokens in 1 MB
    with pytest.raises(InputError, match=r"a\.jsonl:1: the prompts have more than 67,108,864 tokens"):
        list(read(tmp_path / "a.jsonl"))


def test_only_regular_files_are_read(tmp_path: Path):
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("a.jsonl", "/dev/zero", "/dev/null"):
        with pytest.raises(InputError, match="not a regular file"):
            list(read(tmp_path / name))
    with pytest.raises(InputError, match="contains no data file"):
        list(read(tmp_path))
    for name in ("loop", "a\0b", "x" * 300):
        with pytest.raises(InputError, match=r"cannot be read|there is no such file"):
            list(read(tmp_path / name))


@pytest.mark.parametrize("seed", range(40))
def test_parquet_with_bytes_changed_is_a_named_problem(tmp_path: Path, seed: int):
    parquet = pytest.importorskip("pyarrow.parquet", reason="the datasets extra is not installed")
    pyarrow = pytest.importorskip("pyarrow")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet", compression=None)
    content, rng = bytearray((tmp_path / "a.parquet").read_bytes()), random.Random(seed)
    for _ in range(rng.randint(1, 8)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    (tmp_path / "a.parquet").write_bytes(content[: rng.choice([len(content), rng.randrange(len(content))])])
    reader = Reader(tmp_path / "a.parquet", on_error="skip")
    read_rows = sum(1 for _ in reader)
    assert read_rows + reader.skipped.total() == reader.rows <= 6


@pytest.mark.parametrize("name", ["hf://", "hf://a", "hf://../../etc", "hf://a/b/c/d", "hf://a/..", "hf://a b/c"])
def test_what_is_no_data_set_of_the_hub_is_said(name: str):
    pytest.importorskip("datasets", reason="the datasets extra is not installed")
    with pytest.raises(InputError, match="is named hf://org/name"):
        list(read(name))


def test_a_saved_data_set_that_is_damaged_is_named(tmp_path: Path):
    pytest.importorskip("datasets", reason="the datasets extra is not installed")
    for content in ("{", "{}", '{"features": 3}', "[]"):
        (tmp_path / "dataset_info.json").write_text(content)
        with pytest.raises(InputError, match="not a complete dataset"):
            list(read(tmp_path))


@pytest.mark.parametrize("text", [b"[1, 2", b"[1] 2", b'["', b"[{}, ]"])
def test_a_list_that_does_not_end_as_one_is_no_bad_row_to_skip(tmp_path: Path, text: bytes):
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(InputError, match=r"a\.json: the file begins as a JSON list"):
        list(Reader(tmp_path / "a.json", on_error="skip"))


def test_an_element_that_is_no_object_is_a_bad_row_and_a_huge_list_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "a.json").write_text(json.dumps([ROWS[0], 3, ROWS[1]]))
    reader = Reader(tmp_path / "a.json", on_error="skip")
    assert len(list(reader)) == 2 and reader.skipped == {"not_json": 1} and reader.place.line == 3
    monkeypatch.setattr(lines_module, "MAX_LINE", 100)
    with pytest.raises(InputError, match="write it as JSON Lines"):
        list(Reader(tmp_path / "a.json", on_error="skip"))


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("content", ["a pickle", b"PK\x03\x04 and more\n", b"GGUF", b"abc\0def"])
def test_a_pickle_or_other_binary_file_is_refused_by_its_first_bytes(tmp_path: Path, content: str | bytes):
    text = pickle.dumps(Bomb(tmp_path / "ran")) if isinstance(content, str) else content
    (tmp_path / "a.jsonl").write_bytes(text)
    with pytest.raises(InputError, match=r"a\.jsonl: the file is not text.* Bough reads JSON Lines"):
        list(read(tmp_path / "a.jsonl"))
    assert not (tmp_path / "ran").exists()
