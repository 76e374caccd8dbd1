"""Data files and records."""

from pathlib import Path

import pytest

import bough
from tests.blocks import ROOT

PAIRS = ROOT / "examples" / "household-pairs.jsonl"


def test_what_is_written_is_read_back(tmp_path: Path):
    pairs = list(bough.read(PAIRS))
    path = bough.write(pairs, tmp_path / "pairs.jsonl.zst")
    assert list(bough.read(path)) == pairs
    with pytest.raises(bough.InputError, match="exists"):
        bough.write(pairs, path)
    with pytest.raises(bough.InputError, match=r"bough\.convert writes"):
        bough.write(str(path), tmp_path / "other.jsonl")


def test_converting_writes_all_rows_or_none(tmp_path: Path):
    path = bough.convert(PAIRS, tmp_path / "trl.jsonl", to="trl")
    assert len(path.read_text().splitlines()) == len(list(bough.read(PAIRS)))
    with pytest.raises(bough.InputError, match="knowlyr-grpo"):
        bough.convert(PAIRS, tmp_path / "groups.jsonl", to="knowlyr-grpo")
    assert [file.name for file in tmp_path.iterdir()] == ["trl.jsonl"]
    with pytest.raises(bough.InputError, match="can only be read"):
        bough.convert(PAIRS, tmp_path / "x.jsonl", to="alpaca")


def test_bad_rows_are_a_list(tmp_path: Path):
    file = tmp_path / "data.jsonl"
    file.write_text(PAIRS.read_text() + "{\n")
    [problem] = bough.validate(file)
    good = len(list(bough.read(PAIRS)))
    assert problem.line == good + 1 and problem.reason == "not_json"
    assert bough.validate(file).report["good"] == good and f"data.jsonl:{good + 1}" in repr(bough.validate(file))
    assert bough.validate(PAIRS) == []


def test_statistics_are_the_same_of_a_file_and_of_its_records():
    found = bough.stats(PAIRS)
    assert found == bough.stats(list(bough.read(PAIRS))) and f"{len(list(bough.read(PAIRS)))} pair" in found["records"]
    assert "14 pair" in repr(found)
