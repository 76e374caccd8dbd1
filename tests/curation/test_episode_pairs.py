from typing import Any

import pytest

from bough.curation.pairs import episode_pairs
from bough.curation.rounds import EpisodePairsConfig
from bough.curation.source import SourcedTrajectory
from bough.ledger import Ledger
from bough.types import Message, Pair
from tests.curation.records import START, episode, turn


def mined(*filed: SourcedTrajectory, **settings: Any) -> tuple[list[Pair], Ledger, Ledger]:
    episodes, candidates = Ledger("episodes"), Ledger("candidates")
    found = episode_pairs(filed, EpisodePairsConfig(**settings), episodes, candidates)
    assert episodes.came_in == len(filed) and candidates.kept == len(found)
    return found, episodes, candidates


def sides(pair: Pair) -> tuple[str, str]:
    chosen, rejected = pair.info["chosen"], pair.info["rejected"]
    assert isinstance(chosen, dict) and isinstance(rejected, dict)
    return str(chosen["trajectory"]), str(rejected["trajectory"])


def test_a_pair_starts_where_success_and_failure_part_and_keeps_their_exact_tokens():
    good = episode("good", turn("x", token=7), turn("y", token=8), turn("z", token=9))
    bad = episode("bad", turn("x", token=7), turn("w", token=5), success=False)
    [pair], _, _ = mined(good, bad)
    assert [message.content for message in pair.start] == ["Rules.", "Go.", "x", "ok"]
    assert pair.chosen == good.trajectory.turns[1:] and pair.rejected == bad.trajectory.turns[1:]
    assert pair.chosen[0].call is not None and pair.chosen[0].call.completion_ids == [8]
    assert (pair.reason, pair.margin) == ("success_over_failure", 1.0)
    assert pair.info == {
        "rule": "success_over_failure", "turn": 1,
        "chosen": {"file": "good.jsonl", "line": 1, "trajectory": "good"},
        "rejected": {"file": "bad.jsonl", "line": 1, "trajectory": "bad"},
    }  # fmt: skip


def test_only_attempts_from_the_same_initial_state_are_compared():
    other_start = [*START[:1], Message(role="user", content="Come.")]
    pairs, episodes, _ = mined(
        episode("a", "x"),
        episode("b", "y", success=False, task="u"),
        episode("c", "y", success=False, start=other_start),
    )
    assert pairs == [] and episodes.dropped == {"only_successes": 1, "only_failures": 2}
    pairs, episodes, _ = mined(episode("s", "a"), episode("u", "b", success=None))
    assert pairs == [] and episodes.dropped == {"only_successes": 1, "outcome_unknown": 1}


def test_attempts_are_matched_as_asked():
    attempts = [
        episode("s1", "a", "b", "c"), episode("s2", "p", "c"),
        episode("f1", "p", "q", success=False), episode("f2", "a", "b", "q", success=False),
    ]  # fmt: skip
    assert [sides(pair) for pair in mined(*attempts)[0]] == [("s1", "f2"), ("s2", "f1")]
    pairs, episodes, _ = mined(*attempts, match="shortest_success")
    assert [sides(pair) for pair in pairs] == [("s2", "f1"), ("s2", "f2")]
    assert episodes.dropped == {"not_matched": 1}
    assert len(mined(*attempts, match="all")[0]) == 4
    pairs, _, candidates = mined(*attempts, match="all", per_task=3)
    assert sides(pairs[0]) == ("s1", "f2") and len(pairs) == 3 and candidates.dropped == {"more_than_per_task": 1}


def test_of_two_equally_near_failures_the_one_that_got_further_is_nearer():
    attempts = [
        episode("s", "a", "b"),
        episode("f1", "a", turn("q", progress=0.2), success=False),
        episode("f2", "a", turn("r", progress=0.6), success=False),
    ]
    assert [sides(pair) for pair in mined(*attempts)[0]] == [("s", "f2")]


def test_the_cap_is_each_tasks_own():
    attempts = [
        one
        for task in ("t", "u")
        for one in (episode(f"{task}s", "a", task=task), episode(f"{task}f", "b", task=task, success=False))
    ]
    assert len(mined(*attempts, per_task=1)[0]) == 2


def test_of_two_failures_three_fifths_of_a_form_beat_one_fifth():
    attempts = [
        episode("one", turn("a", progress=0.2), success=False),
        episode("three", turn("b", progress=0.6), success=False),
        episode("two", turn("c", progress=0.4), success=False),
        episode("untold", turn("d"), success=False),
    ]
    assert mined(*attempts)[0] == []
    pairs, episodes, _ = mined(*attempts, progress_margin=0.4)
    assert [sides(pair) for pair in pairs] == [("three", "one")]
    assert (pairs[0].reason, pairs[0].margin) == ("more_progress", pytest.approx(0.4))
    assert episodes.dropped == {"only_failures": 2}
    finer = mined(*attempts, progress_margin=0.2)[0]
    assert [sides(pair) for pair in finer] == [("three", "one"), ("three", "two"), ("two", "one")]


def test_success_against_failure_goes_before_progress():
    attempts = [
        episode("s", "a"),
        episode("f1", turn("b", progress=0.0), success=False),
        episode("f2", turn("c", progress=0.9), success=False),
    ]
    pairs, _, _ = mined(*attempts, progress_margin=0.5, per_task=1)
    assert [pair.reason for pair in pairs] == ["success_over_failure"]


def test_a_failure_that_was_only_cut_short_makes_no_pair():
    pairs, _, candidates = mined(episode("s", "a", "b"), episode("f", "a", success=False, stop="max_turns"))
    assert pairs == [] and candidates.dropped == {"never_part": 1}


def test_the_same_two_ways_make_one_pair():
    attempts = [episode("s", "a"), episode("f1", "b", success=False), episode("f2", "b", success=False)]
    pairs, episodes, candidates = mined(*attempts, match="all")
    assert len(pairs) == 1 and candidates.dropped == {"duplicate": 1} and episodes.dropped == {"not_matched": 1}


def test_the_margin_is_the_difference_of_the_reward_asked_for():
    attempts = [
        episode("s", "a", rewards={"outcome": 1.0, "total": 0.9}),
        episode("f", "b", success=False, rewards={"outcome": 0.0, "total": 0.2}),
    ]
    ledgers = Ledger("episodes"), Ledger("candidates")
    assert mined(*attempts)[0][0].margin == pytest.approx(0.7)
    [pair] = episode_pairs(attempts, EpisodePairsConfig(), *ledgers, reward="outcome")
    assert pair.margin == 1.0
