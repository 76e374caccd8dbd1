import pytest

from bough.curation.rounds import StateTree, round_pairs
from bough.curation.source import SourcedTrajectory
from bough.curation.states import states
from bough.environments.mistakes import PLAIN
from bough.ledger import Ledger
from bough.types import Pair
from tests.curation.records import episode, turn


def mined(*filed: SourcedTrajectory) -> tuple[list[Pair], Ledger]:
    ledger = Ledger("failures")
    found = round_pairs(filed, ledger, rules_of=lambda _: PLAIN)
    assert ledger.kept == len(found) and ledger.came_in == sum(f.trajectory.success is False for f in filed)
    return found, ledger


def test_the_pair_is_the_round_where_the_failure_left_the_way_to_success():
    good = episode("good", turn("x", token=7), turn("y", token=8), turn("z", token=9))
    bad = episode("bad", turn("x", token=7), turn("w", token=5), "v", success=False)
    [pair], _ = mined(good, bad)
    assert [message.content for message in pair.start] == ["Rules.", "Go.", "x", "ok"]
    assert pair.chosen == [good.trajectory.turns[1]] and pair.rejected == [bad.trajectory.turns[1]]
    assert pair.reason == "parting"
    assert pair.info == {
        "rule": "parting", "turn": 1,
        "history": {"file": "bad.jsonl", "line": 1, "trajectory": "bad"},
        "chosen": {"file": "good.jsonl", "line": 1, "trajectory": "good", "turn": 1},
        "plays": {"chosen": [1, 1], "rejected": [0, 1]},
    }  # fmt: skip


def test_the_margin_is_the_difference_of_the_expected_success_rates():
    attempts = [
        episode("s1", "y"),
        episode("s2", "y"),
        episode("s3", "y", "n", success=False),
        episode("f", "w", success=False),
    ]
    pairs, _ = mined(*attempts)
    # Chosen y: 2 of 3, so (2 + 1) / (3 + 2); rejected w: 0 of 1, so 1 / 3.
    by_reply = {pair.rejected[0].action: pair for pair in pairs}
    assert by_reply["w"].margin == pytest.approx(3 / 5 - 1 / 3)
    assert by_reply["w"].info["plays"] == {"chosen": [2, 3], "rejected": [0, 1]}


def test_a_way_that_also_led_to_success_is_no_parting():
    attempts = [episode("s1", "x", "y"), episode("s2", "w", "z"), episode("f", "w", "q", success=False)]
    [pair], _ = mined(*attempts)
    assert pair.info["turn"] == 1, "w led to success too; the failure went wrong only after it"
    assert pair.chosen[0].action == "z" and pair.rejected[0].action == "q"


def test_the_same_action_argued_for_differently_is_the_same_way():
    good = episode("good", turn("x", thought="A. ", token=7), turn("y", token=8))
    bad = episode("bad", turn("x", thought="B. ", token=6), turn("w", token=5), success=False)
    [pair], _ = mined(good, bad)
    assert pair.start[2].content == "B. x", "the history is the failure's own"
    assert pair.chosen[0].action == "y" and pair.chosen[0].call is None, "its tokens answered another history"
    assert pair.rejected[0].call is not None and pair.rejected[0].call.completion_ids == [5]


def test_a_failure_whose_first_slip_was_the_right_action_does_not_part():
    """The door did not open for it; what it did then left the state as it was."""
    good = episode("good", turn("open", "It opens."), "leave")
    bad = episode("bad", turn("open", "Nothing happens."), turn("sing", "Nothing happens."), success=False)
    found, ledger = mined(good, bad)
    assert not found and ledger.dropped == {"never_part": 1}


def test_failures_that_do_the_same_there_make_one_pair():
    attempts = [episode("s", "x"), episode("f1", "w", success=False), episode("f2", "w", "v", success=False)]
    found, ledger = mined(*attempts)
    assert len(found) == 1 and ledger.dropped == {"duplicate": 1}
    assert found[0].info["plays"] == {"chosen": [1, 1], "rejected": [0, 2]}


def test_a_failure_without_a_success_or_that_was_cut_short_makes_none():
    alone = episode("f", "w", success=False, task="u")
    short = episode("g", "x", success=False, stop="max_turns")
    found, ledger = mined(episode("s", "x", "y"), alone, short)
    assert found == [] and ledger.dropped == {"no_success_came_by": 1, "never_part": 1}


def test_replies_without_effect_show_no_way_and_the_first_of_them_is_to_blame():
    stuck = episode("f", "x", turn("?", error="malformed"), turn("!", error="malformed"), success=False)
    [pair], _ = mined(episode("s", "x", "y"), stuck)
    assert pair.info["turn"] == 1 and pair.rejected[0].action == "?" and pair.chosen[0].action == "y"
    good = episode("s", turn("?", error="malformed"), "y")
    [pair], _ = mined(good, episode("f", "w", success=False))
    assert pair.chosen[0] == good.trajectory.turns[1]


def test_the_tree_offers_another_way_on_that_is_sound():
    bad = episode("f", "w", success=False)
    tree = StateTree([episode("s1", "x"), episode("s2", "y", "z"), bad], lambda _: PLAIN)
    state = states(bad.trajectory, PLAIN)[0]

    def way(not_as: str, *unsound: str) -> str | None:
        found = tree.way_on(state, not_as, lambda turn: turn.action not in unsound)
        return found[0].trajectory.turns[found[1]].action if found else None

    assert (way("w"), way("x"), way("w", "x"), way("x", "y")) == ("x", "y", "y", None)
    assert tree.way_on("elsewhere", "w") is None
