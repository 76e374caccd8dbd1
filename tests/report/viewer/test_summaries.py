from bough.report.viewer.contents import MAX_TEXT, goal, summarise
from bough.types import Message
from tests.report.viewer.samples import call, group, pair, trajectory, turn


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
