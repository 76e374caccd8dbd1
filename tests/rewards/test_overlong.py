import pytest

from bough.rewards.overlong import overlong
from tests.rewards.records import trajectory, turn


@pytest.mark.parametrize(("tokens", "reward"), [(100, 0.0), (7480, 0.0), (8980, -0.5), (10480, -1.0), (20000, -1.0)])
def test_the_last_3000_tokens_before_the_limit_cost_more_and_more(tokens: int, reward: float):
    assert overlong(trajectory(turn(tokens=tokens))) == pytest.approx(reward)


def test_tokens_of_all_calls_count_together():
    assert overlong(trajectory(turn(tokens=6), turn(tokens=3)), max_length=10, buffer=4) == pytest.approx(-0.75)


def test_the_factor_scales_it():
    assert overlong(trajectory(turn(tokens=10)), max_length=10, buffer=4, factor=0.5) == -0.5


def test_without_calls_the_count_of_the_episode_is_used():
    counted = {"completion_tokens": 9}
    assert overlong(trajectory(turn(), info=counted), max_length=10, buffer=4) == pytest.approx(-0.75)
    mixed = trajectory(turn(tokens=1), turn(), info=counted)
    assert overlong(mixed, max_length=10, buffer=4) == pytest.approx(-0.75)


@pytest.mark.parametrize("info", [{}, {"completion_tokens": 0}, {"completion_tokens": "many"}])
def test_unknown_lengths_have_none(info: dict[str, object]):
    assert overlong(trajectory(turn(), info=info)) is None
