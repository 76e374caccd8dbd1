import gzip
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from bough.errors import InputError
from bough.trajectories.reader import Reader, read

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
        ("a.jsonl.xz", lzma.compress(TEXT)),
        ("a.jsonl.zst", zstandard.compress(TEXT)),
        ("bom.jsonl", b"\xef\xbb\xbf" + TEXT),
        ("crlf.jsonl", TEXT.replace(b"\n", b"\r\n")),
        ("list.json", json.dumps(ROWS, indent=1).encode()),
    ],
)
def test_the_same_rows_come_out_of_every_wrapping(tmp_path: Path, plain: Path, name: str, content: bytes):
    (tmp_path / name).write_bytes(content)
    assert list(read(tmp_path / name)) == list(read(plain))


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


def test_a_file_that_is_no_parquet_is_a_named_problem(tmp_path: Path):
    (tmp_path / "a.parquet").write_bytes(b"not parquet")
    with pytest.raises(InputError, match=r"a\.parquet:1: not a whole Parquet file"):
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
