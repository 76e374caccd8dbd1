from typing import Any

import pytest

from bough.curation.demonstrations import DemosConfig, demonstrations
from bough.curation.source import SourcedTrajectory
from bough.ledger import Ledger
from bough.types import Trajectory
from tests.curation.records import episode, turn


def kept(*filed: SourcedTrajectory, **settings: Any) -> tuple[list[Trajectory], Ledger]:
    ledger = Ledger("trajectories")
    config = DemosConfig(file="in.jsonl", output="out.jsonl", **settings)
    found = demonstrations(filed, config, ledger)
    assert ledger.came_in == len(filed) and ledger.kept == len(found)
    return found, ledger


def names(found: list[Trajectory]) -> list[str]:
    return [trajectory.id for trajectory in found]


def test_successes_stay_with_their_provenance():
    found, ledger = kept(
        episode("a", "x", info={"agent": "m"}), episode("b", "x", success=False), episode("c", "y", success=None)
    )
    assert names(found) == ["a"] and ledger.dropped == {"failure": 1, "outcome_unknown": 1}
    assert found[0].info == {
        "agent": "m", "source": {"file": "a.jsonl", "line": 1, "trajectory": "a"}, "rule": "demonstration",
    }  # fmt: skip


def test_filters_by_reward_and_length():
    episodes = [
        episode("low", "a", rewards={"outcome": 0.4}),
        episode("good", "b", "b", rewards={"outcome": 0.5}),
        episode("none", "c", rewards={"outcome": None}),
        episode("long", "d", "e", "f", rewards={"outcome": 1.0}),
    ]
    found, ledger = kept(*episodes, min_reward=0.5, longest=2)
    assert names(found) == ["good"] and ledger.dropped == {"low_reward": 1, "not_scored": 1, "too_many_turns": 1}
    failure = episode("a", "x", success=False, rewards={"outcome": 0.8})
    assert names(kept(failure, failures=True, min_reward=0.7)[0]) == ["a"]


def test_a_failure_that_got_far_is_kept_up_to_its_highest_progress():
    failures = [
        episode("far", turn("a", progress=0.3), turn("b", progress=0.6), turn("c", progress=0.6), success=False),
        episode("undone", turn("a", progress=0.5), turn("x"), turn("y", progress=0.0), success=False, info={"n": 1}),
        episode("near", turn("z", progress=0.4), success=None),
    ]
    found, ledger = kept(*failures, episode("won", "v", turn("w", progress=0.2)), min_progress=0.5)
    assert [[t.action for t in one.turns] for one in found] == [["a", "b"], ["a"], ["v", "w"]]
    assert [one.info.get("turns_left_out") for one in found] == [1, 2, None] and found[1].info["n"] == 1
    assert ledger.dropped == {"little_progress": 1}
    assert names(kept(*failures, min_progress=0.5, longest=1)[0]) == ["undone"], "its length is what is left of it"


def test_of_one_task_successes_come_first_then_what_got_furthest():
    episodes = [
        episode("half", turn("a", progress=0.5), success=False),
        episode("further", turn("b"), turn("c", progress=0.7), success=False),
        episode("won", "d", "e", "f"),
    ]
    for number, best in enumerate((["won"], ["further", "won"], ["half", "further", "won"]), 1):
        assert names(kept(*episodes, min_progress=0.5, per_task=number)[0]) == best


def test_failures_are_kept_whole_or_up_to_their_progress():
    with pytest.raises(ValueError, match="failures does not go with min_progress"):
        kept(failures=True, min_progress=0.5)


def test_replies_with_errors_are_context_or_trained_or_cost_the_episode():
    one = episode("a", turn("?", error="malformed"), turn("x", trained=False), "y")
    assert [t.trained for t in kept(one)[0][0].turns] == [False, False, True]
    assert [t.trained for t in kept(one, errors="keep")[0][0].turns] == [True, False, True]
    found, ledger = kept(one, errors="drop")
    assert found == [] and ledger.dropped == {"has_errors": 1}
    assert kept(episode("a", turn("?", error="malformed")))[1].dropped == {"nothing_to_train": 1}


def test_the_same_actions_on_the_same_task_are_one_demonstration():
    episodes = [episode("a", "x", "y"), episode("b", turn("x", thought="So: "), "y"), episode("c", "x", "y", task="u")]
    assert names(kept(*episodes)[0]) == ["a", "c"]
    assert names(kept(*episodes, dedupe="actions")[0]) == ["a"]
    assert names(kept(*episodes, dedupe="none")[0]) == ["a", "b", "c"]
    assert kept(*episodes)[1].dropped == {"duplicate": 1}


def test_the_shortest_of_a_task_stay_in_the_order_they_came_in():
    episodes = [
        episode("three", "a", "b", "c"), episode("one", "a"), episode("other", "a", "b", "c", "d", task="u"),
        episode("two", "a", "b"), episode("four", "a", "b", "c", "d"),
    ]  # fmt: skip
    found, ledger = kept(*episodes, per_task=2)
    assert names(found) == ["one", "other", "two"] and ledger.dropped == {"more_than_per_task": 2}
