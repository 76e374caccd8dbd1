from typing import Any

from bough.config.curation import DemosConfig
from bough.curation.demonstrations import demonstrations
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


def test_failures_can_be_judged_by_their_reward_alone():
    failure = episode("a", "x", success=False, rewards={"outcome": 0.8})
    assert names(kept(failure, failures=True, min_reward=0.7)[0]) == ["a"]


def test_replies_with_errors_are_context_or_trained_or_cost_the_episode():
    one = episode("a", turn("?", error="malformed"), turn("x", trained=False), "y")
    assert [t.trained for t in kept(one)[0][0].turns] == [False, False, True]
    assert [t.trained for t in kept(one, errors="keep")[0][0].turns] == [True, False, True]
    found, ledger = kept(one, errors="drop")
    assert found == [] and ledger.dropped == {"has_errors": 1}


def test_an_episode_with_nothing_to_train_is_dropped():
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
