from bough.rewards.outcome import outcome
from tests.rewards.records import trajectory


def test_the_recorded_outcome_counts_before_success():
    assert outcome(trajectory(success=True, rewards={"outcome": 0.4})) == 0.4


def test_without_one_success_is_1_and_failure_0():
    assert [outcome(trajectory(success=success)) for success in (True, False, None)] == [1.0, 0.0, None]


def test_an_outcome_that_was_not_scored_falls_back_to_success():
    assert outcome(trajectory(success=True, rewards={"outcome": None})) == 1.0


def test_a_failure_can_be_worth_less_than_nothing():
    assert outcome(trajectory(success=False), failure=-1.0) == -1.0
    assert outcome(trajectory(success=True), failure=-1.0) == 1.0
    assert outcome(trajectory(success=None), failure=-1.0) is None


def test_a_failure_with_some_gain_keeps_it():
    assert outcome(trajectory(success=False, rewards={"outcome": 0.5}), failure=-1.0) == 0.5
