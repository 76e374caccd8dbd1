from functools import partial

from bough.environments.rewards import bounded, bounds_of
from bough.environments.rubric import REWARDS


def test_what_is_declared_is_found_and_the_function_stays_the_same():
    @bounded(-1.0, 1.0)
    def sign(value: float) -> float:
        return value

    assert bounds_of(sign) == (-1.0, 1.0) and sign(0.5) == 0.5
    assert bounds_of(lambda trajectory: 0.0) is None and bounds_of(partial(sign)) is None


def test_shares_among_our_own_rewards_are_declared():
    declared = {name: bounds_of(reward) for name, reward in REWARDS.items() if bounds_of(reward)}
    assert declared == dict.fromkeys(["progress", "steps", "format", "judge", "judge_ranking"], (0.0, 1.0)) | {
        "mistakes": (-1.0, 0.0)
    }
