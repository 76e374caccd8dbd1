import math
from statistics import fmean, stdev

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bough.curation.advantages import call_advantages, group_advantages, step_advantages, turn_advantages
from bough.types import Group, Message, Task, Trajectory, Turn

REWARD = st.floats(-1e6, 1e6)
STEPS = st.lists(REWARD, min_size=1, max_size=8)
ADVANTAGE = st.floats(-100, 100)


def test_advantages_are_centred_and_scaled_by_the_samples_standard_deviation():
    values, dropped = group_advantages([1.0, 0.0, 0.0, 1.0])  # mean 1/2, deviation √(4·¼ / 3)
    assert values == pytest.approx([math.sqrt(0.75), -math.sqrt(0.75), -math.sqrt(0.75), math.sqrt(0.75)])
    assert dropped is None


def test_without_normalising_advantages_are_only_centred():
    assert group_advantages([1.0, 0.0, 0.0, 1.0], normalise=False) == ([0.5, -0.5, -0.5, 0.5], None)
    assert group_advantages([0.0, 0.5, 1.0], normalise=False) == ([-0.5, 0.0, 0.5], None)  # one of them average


def test_the_advantages_of_a_groups_turns_are_normalised_unless_asked_otherwise():
    turns = [Turn(reply=Message(role="assistant", content="x"))]
    attempts = [
        Trajectory(
            id="a", task=Task(id="t"), start=[Message(role="user", content="Go.")], turns=turns, rewards={"reward": r}
        )
        for r in (1.0, 0.0)
    ]
    group = Group(task=Task(id="t"), attempts=attempts)
    assert call_advantages(group) == [[pytest.approx(math.sqrt(0.5))], [pytest.approx(-math.sqrt(0.5))]]
    assert call_advantages(group, normalise=False) == [[0.5], [-0.5]]


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(
    ("rewards", "values", "dropped"),
    [
        ([], [], "too_few_scored"),
        ([None, None], [None, None], "too_few_scored"),
        ([None, 1.0, None], [None] * 3, "too_few_scored"),
        ([0.5, None, 0.5], [0.0, None, 0.0], "zero_variance"),
        ([0.0, 0.0], [0.0, 0.0], "zero_variance"),
        ([0.1 + 0.2, 0.3], [0.0, 0.0], "zero_variance"),  # rounding is no difference
        ([1e6 + 1e-9, 1e6], [0.0, 0.0], "zero_variance"),
        ([5e-324, 0.0], [0.0, 0.0], "zero_variance"),  # too small to divide by
    ],
)
def test_a_group_without_anything_to_compare_is_dropped(rewards, values, dropped, normalise):
    assert group_advantages(rewards, normalise=normalise) == (values, dropped)


def test_an_unscored_attempt_stays_out_of_the_baseline_and_small_rewards_count():
    assert group_advantages([1.0, None, 0.0], normalise=False).values == [0.5, None, -0.5]
    assert group_advantages([1e-9, 2e-9]).dropped is None


@settings(deadline=None, max_examples=50)
@given(st.lists(st.none() | REWARD, min_size=2, max_size=8))
def test_normalised_advantages_have_mean_zero_deviation_one_and_the_rewards_order(rewards):
    values, dropped = group_advantages(rewards)
    assume(dropped is None)
    assert [value is None for value in values] == [reward is None for reward in rewards]
    scored = sorted((r, v) for r, v in zip(rewards, values, strict=True) if r is not None)
    kept = [value for _, value in scored]
    assert fmean(kept) == pytest.approx(0, abs=1e-6)
    assert stdev(kept) == pytest.approx(1)
    assert kept == sorted(kept)


@pytest.mark.parametrize(
    ("advantage", "rewards", "bounded", "seed"),
    [
        (2.0, [1.0, 3.0], [1.0, 3.0], [1.0, 3.0]),
        (-2.0, [1.0, 3.0], [-3.0, -1.0], [-1.0, -3.0]),  # the seed's formula punishes the better step more
        # d = [3, −1, −1, −1], so g = [1, −1/3, −1/3, −1/3]: at most twice the advantage
        (3.0, [1.0, 0.0, 0.0, 0.0], [6.0, 2.0, 2.0, 2.0], [12.0, 0.0, 0.0, 0.0]),
        (-3.0, [1.0, 0.0, 0.0, 0.0], [0.0, -4.0, -4.0, -4.0], [-12.0, 0.0, 0.0, 0.0]),
        (1.0, [-3.0, -1.0], [0.5, 1.5], [1.5, 0.5]),
        (-1.0, [-3.0, -1.0], [-1.5, -0.5], [-1.5, -0.5]),
        (2.0, [-1.0, 1.0], [0.0, 4.0], [2.0, 2.0]),  # the seed's formula with a mean of 0: the advantage for each
    ],
)
def test_steps_share_an_advantage_by_their_rewards(advantage, rewards, bounded, seed):
    assert step_advantages(advantage, rewards) == pytest.approx(bounded)
    assert step_advantages(advantage, rewards, "seed") == pytest.approx(seed)


@pytest.mark.parametrize("formula", ["bounded", "seed"])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_unscored_steps_get_the_attempts_advantage_and_move_nothing(formula, advantage):
    mixed = step_advantages(advantage, [1.0, None, 3.0], formula)
    low, high = step_advantages(advantage, [1.0, 3.0], formula)
    assert mixed == [low, advantage, high]
    assert step_advantages(advantage, [None, None], formula) == [advantage, advantage]
    assert step_advantages(advantage, [0.0, 0.0], formula) == [advantage, advantage]
    assert step_advantages(advantage, [], formula) == []


def test_the_smallest_and_largest_rewards_do_not_break_the_means():
    assert step_advantages(1.0, [5e-324, 0.0]) == [2.0, 0.0]
    assert step_advantages(1.0, [1.7e308, 1.7e308]) == [1.0, 1.0]


@settings(deadline=None, max_examples=100)
@given(ADVANTAGE, STEPS)
def test_steps_keep_the_order_and_the_mean_and_lie_between_nothing_and_twice_the_advantage(advantage, rewards):
    values = step_advantages(advantage, rewards)
    pairs = sorted(zip(rewards, values, strict=True))
    assert [a for _, a in pairs] == sorted(a for _, a in pairs)
    assert fmean(values) == pytest.approx(advantage, rel=1e-9, abs=1e-9)
    low, high = sorted((0.0, 2 * advantage))
    assert all(low <= value <= high for value in values)


@settings(deadline=None, max_examples=50)
@given(ADVANTAGE, REWARD, st.integers(1, 9))
def test_equal_step_rewards_give_every_step_the_advantage(advantage, reward, count):
    assert step_advantages(advantage, [reward] * count) == [advantage] * count


@pytest.mark.parametrize("formula", ["bounded", "seed"])
@settings(deadline=None, max_examples=50)
@given(advantage=ADVANTAGE, rewards=st.lists(st.floats(0.01, 100), min_size=1, max_size=8), unit=st.floats(1e-3, 1e3))
def test_the_unit_of_step_rewards_does_not_matter(formula, advantage, rewards, unit):
    scaled = step_advantages(advantage, [reward * unit for reward in rewards], formula)
    assert scaled == pytest.approx(step_advantages(advantage, rewards, formula), rel=1e-6, abs=1e-9)


@settings(deadline=None, max_examples=50)
@given(st.floats(0, 100), st.lists(st.floats(0.5, 1.0), min_size=1, max_size=8))
def test_where_the_seeds_formula_makes_sense_ours_is_the_same(advantage, rewards):
    # No reward in [0.5, 1] is above twice the mean, and the advantage is not negative.
    expected = step_advantages(advantage, rewards, "seed")
    assert step_advantages(advantage, rewards) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_turn_advantages_compare_returns_to_go_at_the_same_turn():
    # returns to go: [1, 1] and [0.5, 0]; baselines 0.75 and 0.5
    values, dropped = turn_advantages([[0.0, 1.0], [0.5, 0.0]], normalise=False)
    assert values == [[0.25, 0.5], [-0.25, -0.5]]
    assert dropped is None


@pytest.mark.parametrize(
    ("rewards", "discount", "values"),
    [
        ([[0.0, 1.0], [0.0, 0.0]], 0.5, [[0.25, 0.5], [-0.25, -0.5]]),  # returns to go: [0.5, 1] and [0, 0]
        # Returns to go: [1] and [0, 0, 0]; the baseline of turns 2 and 3 is (1 + 0 + 0 + 0) / 4.
        ([[1.0], [0.0, 0.0, 0.0]], 1.0, [[0.5], [-0.5, -0.25, -0.25]]),
    ],
)
def test_later_rewards_are_discounted_and_a_lone_turn_is_compared_with_the_group(rewards, discount, values):
    assert turn_advantages(rewards, discount=discount, normalise=False).values == values


def test_one_scale_serves_all_turns_of_a_group():
    plain = turn_advantages([[0.0, 1.0], [0.5, 0.0]], normalise=False).values
    scaled = turn_advantages([[0.0, 1.0], [0.5, 0.0]]).values
    scale = stdev([0.25, 0.5, -0.25, -0.5])
    assert [v for turns in scaled for v in turns] == pytest.approx([v / scale for turns in plain for v in turns])


@pytest.mark.parametrize("normalise", [True, False])
@settings(deadline=None, max_examples=50)
@given(rewards=st.lists(st.none() | REWARD, max_size=6))
def test_with_one_turn_each_turn_advantages_are_group_advantages(normalise, rewards):
    turns = turn_advantages([[reward] for reward in rewards], normalise=normalise)
    group = group_advantages(rewards, normalise=normalise)
    assert turns.dropped == group.dropped
    assert [value for [value] in turns.values] == [v if v is None else pytest.approx(v) for v in group.values]


def test_an_unscored_turn_adds_nothing_and_an_unscored_attempt_is_left_out():
    values, _ = turn_advantages([[None, 1.0], [None, 0.0], [None, None, None], []], normalise=False)
    assert values == [[0.5, 0.5], [-0.5, -0.5], [None, None, None], []]


def test_groups_without_anything_to_compare_are_dropped():
    assert turn_advantages([[1.0, 2.0], [None], []]) == ([[None, None], [None], []], "too_few_scored")
    assert turn_advantages([[0.0, 1.0], [0.0, 1.0], [None]]) == ([[0.0, 0.0], [0.0, 0.0], [None]], "zero_variance")
    assert turn_advantages([[0.1 + 0.2], [0.3]]) == ([[0.0], [0.0]], "zero_variance")
    assert turn_advantages([[100 + 1e-9, 0.0], [100.0, 0.0]]).dropped == "zero_variance"  # beside the largest return


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.none() | st.floats(-100, 100), max_size=5), max_size=5), st.floats(0, 1))
def test_turn_advantages_have_the_shape_of_the_rewards_and_centre_on_every_shared_turn(rewards, discount):
    values, dropped = turn_advantages(rewards, discount=discount, normalise=False)
    assert [len(turns) for turns in values] == [len(turns) for turns in rewards]
    if dropped == "too_few_scored":
        return
    for turn in range(max(map(len, values))):
        column = [turns[turn] for turns in values if len(turns) > turn and turns[turn] is not None]
        if len(column) >= 2:
            assert fmean(column) == pytest.approx(0, abs=1e-9)
