"""A data file in another format."""

import json
from pathlib import Path

import pytest

from bough.data.reader import Problem, named, read
from bough.data.writer import ConvertConfig, NotConvertedError, convert

GOOD = json.dumps({"prompt": "Hi", "chosen": "yes", "rejected": "no"}) + "\n"
BAD = json.dumps({"prompt": "Hi", "chosen": "yes", "rejected": "yes"}) + "\n"


def config(tmp_path: Path, text: str, **settings: object) -> ConvertConfig:
    (tmp_path / "pairs.jsonl").write_text(text)
    return ConvertConfig(file=tmp_path / "pairs.jsonl", output=tmp_path / "out.jsonl", **settings)


def test_one_bad_row_stops_it_and_all_are_reported(tmp_path: Path):
    problems: list[Problem] = []
    with pytest.raises(NotConvertedError) as raised:
        convert(config(tmp_path, GOOD + BAD + BAD), named("bough"), problems.append)
    assert raised.value.bad == 2 and [problem.line for problem in problems] == [2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.jsonl"]


def test_bad_rows_can_be_skipped_unless_there_is_no_other(tmp_path: Path):
    skipping = config(tmp_path, GOOD + BAD + GOOD, on_error="skip")
    assert convert(skipping, named("bough"), lambda _: None) == 2 == len(list(read(skipping.output)))
    with pytest.raises(NotConvertedError) as raised:
        convert(config(tmp_path, BAD, on_error="skip"), named("bough"), lambda _: None)
    assert raised.value.bad == 0 and len(list(read(skipping.output))) == 2


def test_a_line_cut_off_at_the_end_stops_nothing(tmp_path: Path):
    problems: list[Problem] = []
    assert convert(config(tmp_path, GOOD + GOOD[:20]), named("bough"), problems.append) == 1
    assert [problem.reason for problem in problems] == ["torn"]
