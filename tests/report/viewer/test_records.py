from collections.abc import Callable
from pathlib import Path

import pytest

from bough.report.viewer import records
from bough.report.viewer.index import Index
from bough.report.viewer.records import MissingError, find, find_trajectory, image, place, show
from bough.types import Message
from tests.report.viewer.run_folder import PNG
from tests.report.viewer.samples import call, group, pair, trajectory, turn, write

Make = Callable[[Path], Index]


def test_a_place_is_a_file_and_a_line():
    assert place("a/b:c.jsonl:12") == ("a/b:c.jsonl", 12)
    for wrong in ("", "a.jsonl", ":3", "a.jsonl:", "a.jsonl:-1", "a.jsonl:x", "a.jsonl:٣", "a.jsonl:9999999999"):
        with pytest.raises(MissingError):
            place(wrong)


def test_only_indexed_places_can_be_asked_for(tmp_path: Path, make_index: Make):
    write(tmp_path / "run/a.jsonl", trajectory("a#0", ["look"]))
    write(tmp_path / "secret.jsonl", trajectory("s#0", ["look"]))
    index = make_index(tmp_path / "run")
    assert find(index, "a.jsonl:1") == trajectory("a#0", ["look"])
    for wrong in ("a.jsonl:2", "../secret.jsonl:1", f"{tmp_path}/secret.jsonl:1", "./a.jsonl:1"):
        with pytest.raises(MissingError, match="no such record"):
            find(index, wrong)


def test_a_record_that_changed_under_us_is_said_to_be_gone(tmp_path: Path, make_index: Make):
    file = write(tmp_path / "run/a.jsonl", trajectory("a#0", ["look"]))
    index = make_index(tmp_path / "run")
    file.write_bytes(b"x" * 2000)
    with pytest.raises(MissingError, match="cannot be read any more"):
        find(index, "a.jsonl:1")
    file.unlink()
    with pytest.raises(MissingError, match="cannot be read"):
        find(index, "a.jsonl:1")


def test_a_trajectory_is_shown_without_its_token_ids(tmp_path: Path, make_index: Make):
    turns = [turn("look", call=call([1, 2, 3], [4, 5], [-0.5, -1.0]), reward=0.25)]
    write(tmp_path / "run/a.jsonl", trajectory("a#0", [], turns=turns), trajectory("a#1", ["go"]))
    shown = show(make_index(tmp_path / "run"), "a.jsonl:1")
    assert (shown["kind"], shown["goal"], shown["siblings"]) == ("trajectory", "Put a mug in shelf.", True)
    assert shown["beside"] == {"previous": None, "next": 2}
    assert shown["turns"][0]["call"] == {
        "prompt_tokens": 3, "completion_tokens": 2, "logprob": -1.5, "finish": "stop", "policy": None,
    }  # fmt: skip
    assert shown["turns"][0]["reward"] == 0.25 and "data" not in shown["task"]


def test_a_turn_outside_the_conversation_shows_what_else_it_was_asked(tmp_path: Path, make_index: Make):
    other = [Message(role="user", content=f"question {number}") for number in range(50)]
    begun = trajectory("a#0", ["look"])
    again = [*begun.start, begun.turns[0].reply, other[0]]
    turns = [begun.turns[0], turn("go", prompt=other), turn("stay", prompt=again)]
    write(tmp_path / "run/a.jsonl", trajectory("a#0", [], turns=turns))
    shown = show(make_index(tmp_path / "run"), "a.jsonl:1")["turns"]
    assert "branch" not in shown[0] and "prompt" not in shown[1]
    assert (shown[1]["branch"]["kind"], len(shown[1]["branch"]["messages"])) == ("sub_agent", 40)
    assert shown[1]["branch"]["left_out"] == 10
    assert shown[2]["branch"] == {
        "kind": "branch", "turn": 0, "messages": [{"role": "user", "content": "question 0"}], "left_out": 0,
    }  # fmt: skip


def test_a_pair_is_parted_where_the_replies_differ(tmp_path: Path, make_index: Make):
    write(tmp_path / "run/a.jsonl", pair(["go", "take", "put"], ["go", "look"]))
    shown = show(make_index(tmp_path / "run"), "a.jsonl:1")
    assert [len(shown[side]) for side in ("shared", "chosen", "rejected")] == [1, 2, 1]
    assert shown["chosen"][0]["action"] == "take" and shown["rejected"][0]["action"] == "look"
    assert shown["reason"] == "loop"


def test_replies_that_agree_are_not_shared_once_the_world_answered_differently(tmp_path: Path, make_index: Make):
    one, other = pair(["go", "take"], ["go", "look"]), Message(role="user", content="Something else.")
    changed = one.rejected[0].model_copy(update={"observation": [other]})
    write(tmp_path / "run/a.jsonl", one.model_copy(update={"rejected": [changed, one.rejected[1]]}))
    assert show(make_index(tmp_path / "run"), "a.jsonl:1")["shared"] == []


def test_the_attempts_of_a_group_have_their_advantages(tmp_path: Path, make_index: Make):
    write(tmp_path / "run/g.jsonl", group(trajectory("a#0", ["look"], False), trajectory("a#1", ["go", "take"], True)))
    index = make_index(tmp_path / "run")
    shown = show(index, "g.jsonl:1", 1)
    # Rewards 0 and 1: mean 1/2, sample deviation 1/sqrt(2).
    assert [turn["advantage"] for turn in shown["turns"]] == pytest.approx([2**-0.5, 2**-0.5])
    assert shown["beside"] == {"attempts": 2, "attempt": 1}
    for attempt in (None, 2, -1):
        with pytest.raises(MissingError, match="attempts 0 to 1"):
            find_trajectory(index, "g.jsonl:1", attempt)


def pictured(folder: Path, *names: object) -> Path:
    write(folder / "deep/a.jsonl", trajectory("a#0", ["look"], info={"images": list(names)}))
    (folder / "deep/images").mkdir(parents=True)
    (folder / "deep/images/001.png").write_bytes(PNG)
    return folder


def test_a_screenshot_is_found_beside_its_file(tmp_path: Path, make_index: Make):
    index = make_index(pictured(tmp_path / "run", "images/001.png"))
    assert image(index, "deep/a.jsonl:1", 0) == (PNG, "image/png")
    assert show(index, "deep/a.jsonl:1")["images"] == [{"number": 0, "turn": 1}]


def test_a_picture_that_is_too_large_stays_where_it_is(
    tmp_path: Path, make_index: Make, monkeypatch: pytest.MonkeyPatch
):
    index = make_index(pictured(tmp_path / "run", "images/001.png"))
    monkeypatch.setattr(records, "MAX_IMAGE", len(PNG) - 1)
    with pytest.raises(MissingError, match="the picture is too large"):
        image(index, "deep/a.jsonl:1", 0)


def test_a_record_cannot_name_a_picture_that_is_none_or_lies_elsewhere(tmp_path: Path, make_index: Make):
    (tmp_path / "outside.png").write_bytes(PNG)
    folder = pictured(
        tmp_path / "run",
        "../../outside.png",
        str(tmp_path / "outside.png"),
        "a.jsonl",
        "images",
        "link.png",
        "images/\0",
        7,
    )
    (folder / "deep/link.png").symlink_to(tmp_path / "outside.png")
    index = make_index(folder)
    for number in range(-1, 9):
        with pytest.raises(MissingError):
            image(index, "deep/a.jsonl:1", number)
