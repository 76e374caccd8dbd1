import pytest

from bough.config.base import Config
from bough.config.groups import RewardWeights
from bough.errors import InputError


class Scoring(Config):
    """A command with rewards."""

    rewards: RewardWeights = {}


def test_words_of_the_command_line_are_rewards_and_weights():
    given = ["outcome=1", "tool_call", "my/re-wards.py:f=0.5", "overlong={weight: 2, max_length: 64}"]
    assert Scoring.load(None, {"rewards": given}).rewards == {
        "outcome": 1.0,
        "tool_call": 1.0,
        "my/re-wards.py:f": 0.5,
        "overlong": {"weight": 2, "max_length": 64},
    }
    assert Scoring(rewards={"steps": 0.1}).rewards == {"steps": 0.1}


@pytest.mark.parametrize("given", [["outcome=much"], ["outcome={weight: true}"], ["outcome={weight: .nan}"], ["a={"]])
def test_a_weight_that_is_no_number_is_refused(given: list[str]):
    with pytest.raises(InputError):
        Scoring.load(None, {"rewards": given})
