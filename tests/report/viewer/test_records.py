from collections.abc import Callable
from pathlib import Path

import pytest

from bough.report.viewer import records
from bough.report.viewer.index import Index
from bough.report.viewer.records import (
    MAX_PARSED,
    MissingError,
    Node,
    find,
    find_trajectory,
    grow,
    image,
    label,
    parts,
    place,
    show,
    tree,
)
from bough.types import Message, ToolCall, Turn
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
    assert (len(shown[1]["branch"]["messages"]), shown[1]["branch"]["left_out"]) == (40, 10)
    assert shown[2]["branch"] == {"messages": [{"role": "user", "content": "question 0"}], "left_out": 0}


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


CALL = '<tool_call>\n{"name": "python", "arguments": {"code": "a = 1\\nprint(a)"}}\n</tool_call>'
DECODED = {"kind": "call", "name": "python", "arguments": {"code": "a = 1\nprint(a)"}}


def said(content: str, **more: object) -> Message:
    return Message.model_validate({"role": "assistant", "content": content, **more})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("THOUGHT: I look.\nACTION: go to shelf 1", [("thought", "I look."), ("action", "go to shelf 1")]),
        ("Think: I look.\nAct: go", [("thought", "I look."), ("action", "go")]),
        ("ACTION: go", [("action", "go")]),
        ("THOUGHT: I never act.", [("reply", "THOUGHT: I never act.")]),
        ("<think>Hm.</think>\nACTION: go", [("thought", "Hm."), ("action", "go")]),
        ("<think>without an end", [("thought", "without an end")]),
        ("<think>a</think>b<think>c</think>\nACTION: go", [("thought", "a</think>b<think>c"), ("action", "go")]),
        ("<think>" + "</think><think>" * 9000 + "</think>Go", [("thought", "</think><think>" * 9000), ("reply", "Go")]),
        ("It is 4.", [("reply", "It is 4.")]),
        ("  ", []),
        ('I try.\n<tool_call>{"name": ', [("thought", "I try."), ("broken call", '<tool_call>{"name":')]),
    ],
)
def test_a_reply_is_taken_apart(content: str, expected: list[tuple[str, str]]):
    assert [(part["kind"], part["text"]) for part in parts(said(content))] == expected


def test_calls_in_tags_and_structured_calls_are_decoded_the_same_way():
    written = parts(said(f"I compute.\n{CALL}"))
    structured = parts(said("I compute.", tool_calls=[ToolCall(name="python", arguments=DECODED["arguments"])]))
    assert written == [{"kind": "thought", "text": "I compute."}, DECODED]
    assert structured == [{"kind": "reply", "text": "I compute."}, DECODED]
    assert [part["kind"] for part in parts(said(CALL + CALL, reasoning="Hm."))] == ["thought", "call", "call"]


def test_a_reply_that_is_nothing_but_its_action_is_an_action():
    assert parts(said(" click('3') "), "click('3')") == [{"kind": "action", "text": "click('3')"}]


def test_the_label_of_a_turn_is_one_line_without_tags_or_json():
    assert label(Turn(reply=said(f"I compute.\n{CALL}"), action=CALL)) == 'python(code="a = 1 print(a)")'
    two = said("", tool_calls=[ToolCall(name="f", arguments={"x": 1, "y": [2]}), ToolCall(name="g")])
    assert label(Turn(reply=two)) == "f(x=1, y=[2]); g()"
    assert label(Turn(reply=said("THOUGHT: a\nACTION: b"), action="b")) == "b"
    assert label(Turn(reply=said("no action\nat all"))) == "no action at all"
    assert len(label(Turn(reply=said("x" * 5000)))) == 600


def test_very_long_replies_are_not_taken_apart():
    for content in (CALL + "x" * MAX_PARSED, "THOUGHT:" + "\n" * MAX_PARSED + "x"):
        assert [part["kind"] for part in parts(said(content))] == ["reply"]
    assert len(parts(said("THOUGHT:" + "\n" * (MAX_PARSED - 100) + "x"))) == 1


def shape(nodes: list[Node]) -> list[object]:
    return [(node.parent, [turn.action for turn in node.turns], node.attempts) for node in nodes]


def test_attempts_are_together_until_they_part():
    attempts = [
        trajectory("a#0", ["go", "open", "take"]),
        trajectory("a#1", ["go", "open", "look"], False),
        trajectory("a#2", ["look"], False),
    ]
    assert shape(grow(attempts)) == [
        (None, [], [0, 1, 2]), (0, ["go", "open"], [0, 1]), (1, ["take"], [0]), (1, ["look"], [1]), (0, ["look"], [2]),
    ]  # fmt: skip


def test_an_attempt_that_ends_where_others_go_on_ends_inside():
    attempts = [trajectory("a#0", ["go"]), trajectory("a#1", ["go", "take"])]
    assert shape(grow(attempts)) == [(None, ["go"], [0, 1]), (0, ["take"], [1])]


def test_the_same_reply_with_another_answer_is_another_way():
    attempts = [trajectory("a#0", [], turns=[turn("go", "Here.")]), trajectory("a#1", [], turns=[turn("go", "There.")])]
    assert [len(node.turns) for node in grow(attempts)] == [0, 1, 1]


def test_attempts_without_turns_make_a_bare_root():
    assert shape(grow([trajectory("a#0", []), trajectory("a#1", [])])) == [(None, [], [0, 1])]


def test_the_tree_of_a_group(tmp_path: Path, make_index: Make):
    attempts = [
        trajectory("a#0", ["go", "take"], True),
        trajectory("a#1", ["go", "look"], False),
        trajectory("a#2", ["go", "look"], False),
    ]
    write(tmp_path / "run/g.jsonl", group(*attempts))
    found = tree(make_index(tmp_path / "run"), "g.jsonl:1")
    assert (found["turns"], found["distinct"], found["flat"]) == (6, 3, None)
    assert [(row["parent"], row["depth"], row["attempts"]) for row in found["root"]] == [
        (None, 0, [0, 1, 2]), (0, 1, [0]), (0, 1, [1, 2]),
    ]  # fmt: skip
    # Rewards 1, 0, 0: mean 1/3, sample deviation sqrt(1/3).
    assert [one["advantage"] for one in found["attempts"]] == pytest.approx([2 / 3**0.5, -1 / 3**0.5, -1 / 3**0.5])
    assert found["attempts"][2]["at"] == "g.jsonl:1" and found["attempts"][2]["attempt"] == 2


def test_the_tree_of_all_attempts_at_a_task_in_a_file(tmp_path: Path, make_index: Make):
    write(
        tmp_path / "run/a.jsonl",
        trajectory("a#0", ["go"]),
        trajectory("b#0", ["go"]),
        trajectory("a#1", ["look"]),
        pair(["a"], ["b"]),
    )
    index = make_index(tmp_path / "run")
    assert [one["at"] for one in tree(index, "a.jsonl:3")["attempts"]] == ["a.jsonl:1", "a.jsonl:3"]
    with pytest.raises(MissingError, match="no tree"):
        tree(index, "a.jsonl:4")


def test_a_very_long_attempt_is_no_deep_tree(tmp_path: Path, make_index: Make):
    actions = [f"step {n}" for n in range(1500)]
    write(tmp_path / "run/g.jsonl", group(trajectory("a#0", actions), trajectory("a#1", actions[:-1])))
    found = tree(make_index(tmp_path / "run"), "g.jsonl:1")
    assert found["distinct"] == 1500 and len(found["root"]) == 2
