import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bough.errors import InputError
from bough.report.viewer import index as module
from bough.report.viewer.contents import Root
from bough.report.viewer.index import Index, counts, lines_of_task, neighbours, records
from tests.report.viewer.samples import pair, trajectory, write

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


def test_a_file_that_was_replaced_or_cut_is_read_anew(tmp_path: Path, make_index: Make):
    file = write(tmp_path / "run/a.jsonl", trajectory("a#0", ["look"]), trajectory("b#0", ["look"]))
    index = make_index(tmp_path / "run")
    beside = write(
        tmp_path / "c.jsonl", trajectory("c#0", ["look"]), trajectory("a#0", ["look"]), trajectory("b#0", ["go"])
    )
    beside.rename(file)
    index.catch_up()
    assert names(index) == ["c#0", "a#0", "b#0"]
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[0])
    index.catch_up()
    assert names(index) == ["c#0"]
    file.unlink()
    index.catch_up()
    assert names(index) == []


def test_bad_rows_are_counted_once_and_the_rest_is_shown(tmp_path: Path):
    file = write(tmp_path / "run/a.jsonl", trajectory("a#0", ["look"]))
    file.write_bytes(b"nonsense\n[]\n{}\n" + file.read_bytes())
    index = Index(Root(tmp_path / "run"))
    index._db.execute("PRAGMA query_only = 1")
    with pytest.raises(InputError, match=r"bough-view-.* cannot be written: .*; set TMPDIR"):
        index.catch_up()
    index._db.execute("PRAGMA query_only = 0")
    index.catch_up()
    assert names(index) == ["a#0"]
    assert index.problems() == [{"file": "a.jsonl", "reasons": {"not_json": 2, "unknown_format": 1}}]


def test_it_indexes_in_the_background(tmp_path: Path):
    write(tmp_path / "run/a.jsonl", *[trajectory(f"a#{n}", ["look"]) for n in range(450)])
    index = Index(Root(tmp_path / "run"))
    index.start()
    try:
        end = time.monotonic() + 30
        while index.busy and time.monotonic() < end:
            time.sleep(0.02)
        assert records(index, {})["total"] == 450
    finally:
        index.close()


@pytest.fixture
def index(tmp_path: Path, make_index: Callable[[Path], Index]) -> Index:
    write(
        tmp_path / "run/a.jsonl",
        trajectory("a#0", ["look"], True),
        trajectory("a#1", ["go to shelf", "take mug", "look"], False),
        trajectory("b#0", ["open Schränkchen"], None, stop="loop"),
    )
    write(tmp_path / "run/b.jsonl", trajectory("a#2", ["look", "look"], False), pair(["go"], ["look"]))
    return make_index(tmp_path / "run")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, ["a#0", "a#1", "b#0", "a#2"]),
        ({"outcome": "success"}, ["a#0"]),
        ({"outcome": "failure"}, ["a#1", "a#2"]),
        ({"outcome": "unknown"}, ["b#0"]),
        ({"task": "b"}, ["b#0"]),
        ({"stop": "loop"}, ["b#0"]),
        ({"file": "b.jsonl"}, ["a#2"]),
        ({"min_turns": "2"}, ["a#1", "a#2"]),
        ({"max_turns": "1"}, ["a#0", "b#0"]),
        ({"min_reward": "0.5"}, ["a#0"]),
        ({"max_reward": "0.5"}, ["a#1", "a#2"]),
        ({"q": "shelf mug take"}, ["a#1"]),
        ({"q": "schränk"}, ["b#0"]),
        ({"q": "nowhere"}, []),
        ({"q": '" OR 1=1 --'}, []),
        ({"q": "***"}, ["a#0", "a#1", "b#0", "a#2"]),
        ({"sort": "turns"}, ["a#0", "b#0", "a#2", "a#1"]),
        ({"sort": "turns", "order": "down"}, ["a#1", "a#2", "b#0", "a#0"]),
        ({"sort": "1; DROP TABLE records"}, ["a#0", "a#1", "b#0", "a#2"]),
        ({"limit": "2", "offset": "1"}, ["a#1", "b#0"]),
        ({"limit": "-1", "offset": "x", "min_turns": "x"}, ["a#0", "a#1", "b#0", "a#2"]),
        ({"outcome": "' OR ''='", "task": "' OR ''='"}, []),
    ],
)
def test_a_list_is_what_was_asked_for(index: Index, asked: dict[str, str], expected: list[str]):
    assert names(index, **asked) == expected


def test_a_page_says_how_many_there_are_and_what_to_filter_by(index: Index):
    found = records(index, {"limit": "1", "outcome": "failure"})
    assert (found["total"], len(found["rows"]), found["rows"][0]["at"]) == (2, 1, "a.jsonl:2")
    assert found["facets"]["success"] == [{"value": 0, "count": 2}, {"value": 1, "count": 1}]
    assert found["facets"]["file"] == [{"value": "a.jsonl", "count": 3}, {"value": "b.jsonl", "count": 1}]
    assert records(index, {"file": "b.jsonl"})["facets"]["success"] == [{"value": 0, "count": 1}]


def test_what_there_is_to_filter_by_is_counted_again_when_more_comes(index: Index):
    assert records(index, {"kind": "pair"})["facets"]["reason"] == [{"value": "loop", "count": 1}]
    write(index.root.path / "c.jsonl", pair(["go"], ["look"], "parting"))
    index.catch_up()
    found = records(index, {"kind": "pair"})["facets"]["reason"]
    assert found == [{"value": "loop", "count": 1}, {"value": "parting", "count": 1}]


def test_behind_the_last_page_there_is_nothing_but_the_number(index: Index):
    found = records(index, {"offset": "100"})
    assert (found["rows"], found["total"]) == ([], 4)


def test_pairs_are_a_list_of_their_own(index: Index):
    assert [row["reason"] for row in records(index, {"kind": "pair", "reason": "loop"})["rows"]] == ["loop"]
    assert counts(index) == [
        {"file": "a.jsonl", "kind": "trajectory", "count": 3, "successes": 1, "failures": 1},
        {"file": "b.jsonl", "kind": "pair", "count": 1, "successes": None, "failures": None},
        {"file": "b.jsonl", "kind": "trajectory", "count": 1, "successes": 0, "failures": 1},
    ]


def test_a_record_knows_its_neighbours_and_the_other_attempts(index: Index):
    assert neighbours(index, "a.jsonl", 2, "trajectory") == {"previous": 1, "next": 3}
    assert neighbours(index, "a.jsonl", 1, "trajectory") == {"previous": None, "next": 2}
    assert neighbours(index, "b.jsonl", 2, "pair") == {"previous": None, "next": None}
    assert lines_of_task(index, "a.jsonl", "a") == [1, 2]
