import random

import pytest

from bough.curation.rounds import Rate, probability_better


def test_one_success_against_one_failure_by_hand():
    # Beta(2, 1) against Beta(1, 2): the integral of 2x · (1 − (1 − x)²) from 0 to 1 is 4/3 − 1/2 = 5/6.
    assert probability_better(Rate(1, 1), Rate(0, 1)) == pytest.approx(5 / 6)


def test_knowing_nothing_or_the_same_is_even_odds():
    assert probability_better(Rate(0, 0), Rate(0, 0)) == pytest.approx(0.5)
    assert probability_better(Rate(5, 9), Rate(5, 9)) == pytest.approx(0.5)


@pytest.mark.parametrize(("left", "right"), [((3, 4), (1, 5)), ((0, 12), (12, 12)), ((7, 12), (6, 12))])
def test_both_directions_add_up_to_one(left: tuple[int, int], right: tuple[int, int]):
    there, back = probability_better(Rate(*left), Rate(*right)), probability_better(Rate(*right), Rate(*left))
    assert there + back == pytest.approx(1.0)


@pytest.mark.parametrize(("left", "right"), [((3, 4), (1, 5)), ((8, 8), (3, 8)), ((11, 12), (8, 12)), ((2, 3), (0, 7))])
def test_it_is_how_often_a_draw_from_the_one_posterior_is_higher(left: tuple[int, int], right: tuple[int, int]):
    rng = random.Random(0)

    def draw(successes: int, plays: int) -> float:
        return rng.betavariate(successes + 1, plays - successes + 1)

    higher = sum(draw(*left) > draw(*right) for _ in range(40_000)) / 40_000
    assert probability_better(Rate(*left), Rate(*right)) == pytest.approx(higher, abs=0.01)


def test_the_mean_starts_at_one_half_and_rates_add_up():
    assert Rate(0, 0).mean == 0.5 and Rate(3, 4).mean == pytest.approx(4 / 6)
    assert Rate(1, 2) + Rate(2, 2) == Rate(3, 4)


def test_where_nothing_is_known_beforehand_the_certainty_is_how_often_it_is_right():
    rng = random.Random(1)
    stated: list[tuple[float, bool]] = []
    for _ in range(6000):
        left, right = rng.random(), rng.random()
        rates = [Rate(sum(rng.random() < rate for _ in range(6)), 6) for rate in (left, right)]
        stated.append((probability_better(*rates), left > right))
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        inside = [(certainty, right) for certainty, right in stated if low <= certainty < low + 0.2]
        mean, share = (sum(column) / len(inside) for column in zip(*inside, strict=True))
        assert share == pytest.approx(mean, abs=0.04)
