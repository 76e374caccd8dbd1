import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bough.errors import InputError
from bough.report.viewer import index as module
from bough.report.viewer.contents import Root
from bough.report.viewer.index import Index, records
from tests.report.viewer.samples import trajectory, write

Make = Callable[[Path], Index]


def names(index: Index, **asked: str) -> list[str]:
    return [row["name"] for row in records(index, asked)["rows"]]


def test_a_file_that_grows_is_read_on_and_not_again(tmp_path: Path, make_index: Make, monkeypatch: pytest.MonkeyPatch):
    file = write(tmp_path / "run/a.jsonl", trajectory("a#0", ["look"]))
    index = make_index(tmp_path / "run")
    offsets = []
    read_on = module.read_on
    monkeypatch.setattr(
        module, "read_on", lambda path, offset, line: offsets.append(offset) or read_on(path, offset, line)
    )
    first = file.stat().st_size
    line = file.read_bytes().replace(b"a#0", b"b#0")
    with file.open("ab") as stream:
        stream.write(line)
    index.catch_up()
    assert names(index) == ["a#0", "b#0"]
    assert offsets == [first]
    index.catch_up()
    assert offsets == [first]


def test_half_a_line_is_waited_for(tmp_path: Path, make_index: Make):
    file = write(tmp_path / "run/a.jsonl", trajectory("a#0", ["look"]))
    line = file.read_bytes().replace(b"a#0", b"b#0")
    with file.open("ab") as stream:
        stream.write(line[:50])
    index = make_index(tmp_path / "run")
    assert names(index) == ["a#0"] and index.problems() == []
    with file.open("ab") as stream:
        stream.write(line[50:])
    index.catch_up()
    assert names(index) == ["a#0", "b#0"]


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path, make_index: Make):
    file = write(tmp_path / "run/a.jsonl", trajectory("a#0", ["look"]), trajectory("b#0", ["look"]))
    index = make_index(tmp_path / "run")
    beside = write(
        tmp_path / "c.jsonl", trajectory("c#0", ["look"]), trajectory("a#0", ["look"]), trajectory("b#0", ["go"])
    )
    beside.rename(file)
    index.catch_up()
    assert names(index) == ["c#0", "a#0", "b#0"]
    file.unlink()
    index.catch_up()
    assert names(index) == []


def test_a_file_that_was_cut_is_read_anew(tmp_path: Path, make_index: Make):
    file = write(tmp_path / "run/a.jsonl", trajectory("a#0", ["look"]), trajectory("b#0", ["look"]))
    index = make_index(tmp_path / "run")
    first = file.read_bytes().splitlines(keepends=True)[0]
    file.write_bytes(first)
    index.catch_up()
    assert names(index) == ["a#0"]


def test_bad_rows_are_counted_by_reason_and_the_rest_is_shown(tmp_path: Path, make_index: Make):
    file = write(tmp_path / "run/a.jsonl", trajectory("a#0", ["look"]))
    with file.open("ab") as stream:
        stream.write(b"nonsense\n[]\n{}\n")
    index = make_index(tmp_path / "run")
    assert names(index) == ["a#0"]
    assert index.problems() == [{"file": "a.jsonl", "reasons": {"not_json": 2, "unknown_format": 1}}]


def test_what_is_indexed_is_there_the_next_time(tmp_path: Path, make_index: Make, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path / "run/a.jsonl", trajectory("a#0", ["look"]))
    make_index(tmp_path / "run")
    monkeypatch.setattr(module, "read_on", lambda *_: pytest.fail("read again"))
    assert names(make_index(tmp_path / "run")) == ["a#0"]


def test_an_index_of_another_version_or_a_damaged_one_is_made_anew(tmp_path: Path, make_index: Make):
    write(tmp_path / "run/a.jsonl", trajectory("a#0", ["look"]))
    db = sqlite3.connect(tmp_path / "index.sqlite")
    db.execute("CREATE TABLE files (other)")
    db.execute("PRAGMA user_version = 1")
    db.close()
    assert names(make_index(tmp_path / "run")) == ["a#0"]
    for leftover in tmp_path.glob("index.sqlite*"):
        leftover.unlink()
    (tmp_path / "index.sqlite").write_bytes(b"no database at all" * 100)
    assert names(make_index(tmp_path / "run")) == ["a#0"]


def test_the_index_lies_in_the_cache_and_not_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path / "run/a.jsonl", trajectory("a#0", ["look"]))
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "cache"))
    Index(Root(tmp_path / "run")).catch_up()
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["a.jsonl"]
    assert list((tmp_path / "cache/viewer").glob("*.sqlite"))


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="BOUGH_CACHE"):
        Index(Root(tmp_path), tmp_path / "file/index.sqlite")


def test_it_indexes_in_the_background(tmp_path: Path):
    write(tmp_path / "run/a.jsonl", *[trajectory(f"a#{n}", ["look"]) for n in range(450)])
    index = Index(Root(tmp_path / "run"), tmp_path / "index.sqlite")
    index.start()
    try:
        end = time.monotonic() + 30
        while index.busy and time.monotonic() < end:
            time.sleep(0.02)
        assert records(index, {})["total"] == 450
    finally:
        index.stop()
