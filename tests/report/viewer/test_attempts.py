from collections.abc import Callable
from pathlib import Path

import pytest

from bough.report.viewer.index import Index
from bough.report.viewer.records import MissingError, grow, tree
from tests.report.viewer.samples import group, pair, trajectory, turn, write

Make = Callable[[Path], Index]


def shape(node: object) -> list[object]:
    return [[turn.action for turn in node.turns], node.attempts, [shape(child) for child in node.children]]  # type: ignore[attr-defined]


def test_attempts_are_together_until_they_part():
    attempts = [
        trajectory("a#0", ["go", "open", "take"]),
        trajectory("a#1", ["go", "open", "look"], False),
        trajectory("a#2", ["look"], False),
    ]
    assert shape(grow(attempts)) == [
        [], [0, 1, 2],
        [[["go", "open"], [0, 1], [[["take"], [0], []], [["look"], [1], []]]], [["look"], [2], []]],
    ]  # fmt: skip


def test_an_attempt_that_ends_where_others_go_on_ends_inside():
    attempts = [trajectory("a#0", ["go"]), trajectory("a#1", ["go", "take"])]
    assert shape(grow(attempts)) == [["go"], [0, 1], [[["take"], [1], []]]]


def test_the_same_reply_with_another_answer_is_another_way():
    attempts = [trajectory("a#0", [], turns=[turn("go", "Here.")]), trajectory("a#1", [], turns=[turn("go", "There.")])]
    assert [len(node.turns) for node in grow(attempts).children] == [1, 1]


def test_attempts_without_turns_make_a_bare_root():
    assert shape(grow([trajectory("a#0", []), trajectory("a#1", [])])) == [[], [0, 1], []]


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
