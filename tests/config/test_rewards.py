import re

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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("outcome=much", "rewards.outcome is 'much'; its weight must be a number"),
        ("outcome={weight: true}", "rewards.outcome is {'weight': True}; its weight"),
        ("outcome={weight: .nan}", "rewards.outcome is {'weight': nan}; its weight"),
        ("a={", "rewards.a is '{'; its weight must be a number"),
        ("=1", "'=1' must be written as key=value"),
    ],
)
def test_a_weight_that_is_no_number_is_refused(given: str, said: str):
    with pytest.raises(InputError, match=re.escape(said)) as error:
        Scoring.load(None, {"rewards": [given]})
    assert len(error.value.problems) == 1
