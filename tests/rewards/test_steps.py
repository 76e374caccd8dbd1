import pytest

from bough.rewards.steps import steps
from tests.rewards.records import trajectory, turn


@pytest.mark.parametrize(("turns", "reward"), [(1, 1.0), (2, 0.9), (6, 0.5), (11, 0.0), (20, 0.0)])
def test_each_further_turn_of_a_success_costs_the_same(turns: int, reward: float):
    assert steps(trajectory(*[turn()] * turns, success=True), max_turns=10) == pytest.approx(reward)


def test_a_short_failure_earns_nothing():
    assert steps(trajectory(turn(), success=False)) == 0.0
    assert steps(trajectory(*[turn()] * 26, success=True)) == 0.5


def test_an_unknown_outcome_has_none():
    assert steps(trajectory(turn())) is None
