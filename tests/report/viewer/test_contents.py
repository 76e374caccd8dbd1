import gzip
import json
import os
from pathlib import Path

import pytest

from bough.errors import InputError, RowError
from bough.report.viewer import contents
from bough.report.viewer.contents import MAX_TEXT, Root, goal, summarise
from bough.types import Message, Trajectory
from tests.report.viewer.samples import call, group, pair, trajectory, turn, write


def test_a_folder_is_sorted_into_what_it_holds(folder: Path):
    found = Root(folder).contents()
    assert found.training == ["05-dpo"]
    assert found.evaluations == ["06-eval"]
    assert "02-rollouts/trajectories.jsonl" in found.data and "06-eval/models/random/trajectories.jsonl" in found.data
    assert not any("metrics" in name or name.endswith(".json") for name in found.data)
    assert [name[:2] for name in found.stages] == ["01", "02", "03", "04", "05", "06"]


def test_checkpoints_images_and_hidden_files_are_left_alone(tmp_path: Path):
    for name in ("checkpoints/a.jsonl", "images/a.jsonl", ".hidden/a.jsonl", ".a.jsonl", "kept/a.jsonl"):
        write(tmp_path / name, trajectory("a#0", ["look"]))
    assert Root(tmp_path).contents().data == ["kept/a.jsonl"]


def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path):
    outside = write(tmp_path / "outside/a.jsonl", trajectory("a#0", ["look"]))
    inside = tmp_path / "inside"
    write(inside / "b.jsonl", trajectory("b#0", ["look"]))
    (inside / "out.jsonl").symlink_to(outside)
    (inside / "own.jsonl").symlink_to(inside / "b.jsonl")
    (inside / "folder").symlink_to(outside.parent)
    assert Root(inside).contents().data == ["b.jsonl", "own.jsonl"]


def test_only_plain_files_inside_are_inside(tmp_path: Path):
    write(tmp_path / "in/a.jsonl", trajectory("a#0", ["look"]))
    (tmp_path / "secret.png").write_text("x")
    os.mkfifo(tmp_path / "in/pipe")
    root = Root(tmp_path / "in")
    assert root.inside(root.path / "a.jsonl") is not None
    for name in ("../secret.png", "pipe", ".", "missing", "a\0b", "x" * 5000):
        assert root.inside(root.path / name) is None


def test_one_file_is_shown_without_its_neighbours(tmp_path: Path):
    file = write(tmp_path / "a.jsonl", trajectory("a#0", ["look"]))
    write(tmp_path / "b.jsonl", trajectory("b#0", ["look"]))
    assert Root(file).contents().data == ["a.jsonl"]


def test_what_is_not_there_is_said(tmp_path: Path):
    with pytest.raises(InputError, match=r"^[^:]*: there is no such file or folder"):
        Root(tmp_path / "missing")


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
    assert found[0].length == found[1].offset, "what is read on from there"
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


def test_a_trajectory_in_a_line():
    turns = [turn("look", call=call([1, 2], [3, 4, 5])), turn("nonsense", error="malformed")]
    found = summarise(trajectory("a#1", [], False, turns=turns))
    assert (found.kind, found.name, found.task, found.type) == ("trajectory", "a#1", "a", "pick")
    assert (found.success, found.reward, found.turns, found.tokens, found.errors) == (False, 0.0, 2, 3, 1)
    assert (found.stop, found.agent, found.environment) == ("max_turns", "tiny", "household")
    assert "nonsense" in found.text and "Be brief." in found.text


def test_a_pair_has_its_reason_and_margin_and_no_outcome():
    found = summarise(pair(["go"], ["look", "look"], "loop", margin=0.5))
    assert (found.kind, found.reason, found.reward, found.success, found.turns) == ("pair", "loop", 0.5, None, 3)


def test_a_group_succeeds_where_one_attempt_does():
    found = summarise(group(trajectory("a#0", ["look"], False), trajectory("a#1", ["go", "take"], True)))
    assert (found.kind, found.success, found.stop, found.reward, found.turns) == (
        "group",
        True,
        "1 of 2 succeed",
        0.5,
        3,
    )
    assert summarise(group(trajectory("a#0", ["look"], False))).success is False
    assert summarise(group(trajectory("a#0", ["look"], None))).success is None


def test_the_goal_is_the_line_that_names_the_task():
    assert goal(trajectory("a#0", []).start) == "Put a mug in shelf."
    assert goal([Message(role="user", content="one\n\ntwo\n")]) == "two"
    assert goal([Message(role="user", content="Task:")]) == "Task:"
    assert goal([Message(role="user", content="")]) == ""


def test_endless_text_is_searched_only_at_its_beginning():
    found = summarise(trajectory("a#0", ["x" * 3 * MAX_TEXT], stop="y" * 5000))
    assert len(found.text) < MAX_TEXT + 10
    assert len(found.stop or "") == 300
