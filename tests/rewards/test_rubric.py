import pytest

from bough.errors import InputError, RewardRangeError
from bough.methods.advantages import group_advantages
from bough.rewards.bounds import bounded
from bough.rewards.rubric import Rubric
from bough.rewards.score import score
from bough.types import Trajectory
from tests.rewards.records import trajectory, turn


def broken(trajectory: Trajectory) -> float:
    raise ZeroDivisionError("no turns")


def endless(trajectory: Trajectory) -> float:
    return float("inf")


def wordy(trajectory: Trajectory) -> str:
    return "good"


def test_each_reward_goes_by_its_name_and_the_total_is_their_weighted_sum():
    rubric = Rubric({"outcome": 1.0, "tool_call": 2.0, "overlong": {"weight": 0.5, "max_length": 10, "buffer": 4}})
    wrong = trajectory(turn(tool=True, tokens=9), success=False, rewards={"outcome": -1.0, "kept": 7.0})
    scored = rubric.score(wrong)
    assert scored.rewards == pytest.approx(
        {"outcome": -1.0, "kept": 7.0, "tool_call": 0.1, "overlong": -0.75, "total": -1.0 + 0.2 - 0.375}
    )
    assert wrong.rewards == {"outcome": -1.0, "kept": 7.0}, "the record itself is never changed"
    assert rubric.failed == {}


def test_scoring_twice_gives_the_same():
    rubric = Rubric({"outcome": {"failure": -1}, "tool_call": {"failure": -1}})
    once = rubric.score(trajectory(turn(tool=True), success=False))
    assert once.rewards["total"] == pytest.approx(-0.9) and rubric.score(once) == once


@pytest.mark.parametrize("name", ["broken", "endless", "wordy"])
def test_a_reward_that_fails_is_none_makes_the_total_none_and_is_counted(name: str):
    rubric = Rubric({"outcome": 1.0, f"{__name__}:{name}": 1.0})
    scored = [rubric.score(trajectory(success=True)) for _ in range(3)]
    assert all(t.rewards == {"outcome": 1.0, name: None, "total": None} for t in scored)
    assert rubric.failed == {name: 3} and rubric.why[name].startswith("a: ")
    assert rubric.to_json()[name]["failed"] == 3


@bounded(0.0, 1.0)
def generous(trajectory: Trajectory, *, bonus: float = 0.0) -> float:
    return 1.0 + bonus


def test_a_reward_outside_its_declared_range_stops_the_run():
    assert Rubric({f"{__name__}:generous": 1.0}).score(trajectory(success=True)).rewards["generous"] == 1.0
    rubric = Rubric({"outcome": 1.0, f"{__name__}:generous": {"bonus": 799.0}})
    said = "the reward generous gave the reward 800 for task .*; its declared range is 0 to 1"
    with pytest.raises(RewardRangeError, match=said):
        rubric.score(trajectory(success=True))
    with pytest.raises(RewardRangeError, match="the reward progress"):
        Rubric({"progress": 1.0}).score(trajectory(turn(progress=5.0), success=False))


def test_none_is_counted_like_a_failure():
    rubric = Rubric({"progress": 1.0})
    assert rubric.score(trajectory(turn(), success=False)).rewards == {"progress": None, "total": None}
    assert rubric.failed == {"progress": 1}


def test_a_reward_of_weight_0_is_only_looked_at():
    rubric = Rubric({"outcome": 1.0, "progress": 0.0})
    assert rubric.score(trajectory(turn(), success=False)).rewards == {"outcome": 0.0, "progress": None, "total": 0.0}


def test_what_could_not_be_scored_stays_out_of_the_groups_baseline():
    rubric = Rubric({"outcome": 1.0})
    attempts = [rubric.score(trajectory(success=success)) for success in (True, False, None)]
    values = [score(attempt) for attempt in attempts]
    assert values == [1.0, 0.0, None]
    assert group_advantages(values, normalise=False).values == [0.5, -0.5, None]


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        ({}, "the rewards are none"),
        ({"overlong": {"max_lenght": 3}}, "max_lenght is not a setting; did you mean max_length?"),
        ({"outcome": 1.0, "tests.rewards.outcomes:outcome": 1.0}, "cannot be loaded"),
        ({"outcome": 1.0, "bough.rewards.outcome:outcome": 1.0}, "each needs a name of its own"),
    ],
)
def test_a_rubric_that_makes_no_sense_is_refused(rewards: dict[str, float], said: str):
    with pytest.raises(InputError) as error:
        Rubric(rewards)
    assert said in str(error.value)
