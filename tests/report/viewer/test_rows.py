import gzip
import json
from pathlib import Path

import pytest

from bough.errors import RowError
from bough.report.viewer import contents
from bough.types import Trajectory
from tests.report.viewer.samples import trajectory, write


def two(tmp_path: Path) -> Path:
    return write(tmp_path / "a.jsonl", trajectory("a#0", ["look"]), trajectory("b#0", ["go"]))


def test_a_file_is_read_on_from_an_offset(tmp_path: Path):
    file = two(tmp_path)
    first, second = contents.read_on(file, 0, 0)
    assert (first.line, first.offset, second.line, second.offset) == (1, 0, 2, first.length)
    [again] = contents.read_on(file, second.offset, 1)
    assert again.line == 2 and again.record == second.record


def test_a_record_is_fetched_whole_by_its_place(tmp_path: Path):
    record = trajectory("a#0", ["look"])
    record = record.model_copy(
        update={"task": record.task.model_copy(update={"data": {"type": "pick", "game": [1, 2]}})}
    )
    [found] = contents.read_on(write(tmp_path / "a.jsonl", record), 0, 0)
    assert isinstance(found.record, Trajectory) and found.record.task.data == {"type": "pick"}
    assert contents.fetch(tmp_path / "a.jsonl", 1, found.offset, found.length) == record


def test_packed_files_and_lists_are_found_by_number(tmp_path: Path):
    lines = two(tmp_path).read_bytes()
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(lines))
    listed = tmp_path / "list.jsonl"
    listed.write_text(json.dumps([json.loads(line) for line in lines.splitlines()]))
    for file in (packed, listed):
        assert [(found.line, found.length) for found in contents.read_on(file, 0, 0)] == [(1, 0), (2, 0)]
        assert [found.line for found in contents.read_on(file, 0, 1)] == [2]
        found = contents.fetch(file, 2, 0, 0)
        assert isinstance(found, Trajectory) and found.id == "b#0"
    with pytest.raises(RowError, match="gone"):
        contents.fetch(packed, 3, 0, 0)


def test_a_line_that_is_still_being_written_is_torn(tmp_path: Path):
    file = two(tmp_path)
    with file.open("ab") as stream:
        stream.write(b'{"bough": "traj')
    assert [found.torn for found in contents.read_on(file, 0, 0)] == [False, False, True]


def test_an_enormous_line_is_skipped_without_being_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(contents, "MAX_LINE", 2000)
    file = tmp_path / "a.jsonl"
    good = two(tmp_path).read_bytes()
    file.write_bytes(b'{"x": "' + b"y" * 9000 + b'"}\n' + good)
    found = list(contents.read_on(file, 0, 0))
    assert isinstance(found[0].record, RowError) and found[0].record.reason == "too_large"
    assert [one.line for one in found] == [1, 2, 3] and isinstance(found[2].record, Trajectory)
    assert contents.fetch(file, 3, found[2].offset, found[2].length) == found[2].record


@pytest.mark.parametrize(
    "error", [KeyError("x"), TypeError("x"), AttributeError("x"), RecursionError("x"), ValueError("x")]
)
def test_a_row_that_breaks_its_reader_is_a_bad_row(error: Exception, monkeypatch: pytest.MonkeyPatch):
    def broken(row: object) -> None:
        raise error

    monkeypatch.setattr(contents, "detect", broken)
    found = contents.record_of(b'{"x": 1}\n')
    assert isinstance(found, RowError) and found.reason == "unreadable"


@pytest.mark.parametrize(
    "content",
    [b"not json\n", b"[1]\n", b"{}\n", b'{"bough": 7}\n', b'{"bough": "trajectory/1", "turns": 3}\n', b"\xff\xfe\n",
     b'{"bough": "group/1", "attempts": 5}\n', b'{"bough":"trajectory/1","task":{"data":[]},"turns":{}}\n',
     b'{"a":' * 3000 + b"1" + b"}" * 3000 + b"\n"],
)  # fmt: skip
def test_whatever_stands_in_a_line_is_a_record_or_a_bad_row(content: bytes):
    assert isinstance(contents.record_of(content, light=True), RowError)
    assert isinstance(contents.record_of(content), RowError)
