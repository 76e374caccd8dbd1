from bough.environments.rubric import score
from tests.environments.records import trajectory


def test_the_named_reward_counts():
    assert score(trajectory(rewards={"a": 1.0, "total": 2.0}), "a") == 1.0
    assert score(trajectory(rewards={"a": 1.0}), "b") is None


def test_without_a_name_the_total_then_reward_then_the_only_one_then_the_outcome():
    assert score(trajectory(rewards={"outcome": 1.0, "reward": 3.0, "total": 2.0})) == 2.0
    assert score(trajectory(rewards={"outcome": 1.0, "reward": 3.0})) == 3.0
    assert score(trajectory(rewards={"brevity": 0.5})) == 0.5
    assert score(trajectory(rewards={"brevity": 0.5, "outcome": 1.0})) == 1.0


def test_a_total_that_was_not_scored_is_not_replaced_by_another():
    assert score(trajectory(rewards={"outcome": 1.0, "total": None}, success=True)) is None


def test_without_rewards_success_counts():
    assert [score(trajectory(success=success)) for success in (True, False, None)] == [1.0, 0.0, None]
    assert score(trajectory(rewards={"a": 1.0, "b": 2.0}, success=True)) is None
