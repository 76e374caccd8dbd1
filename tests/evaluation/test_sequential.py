import itertools
from functools import cache

import numpy as np
import pytest

from bough.evaluation import intervals
from bough.evaluation.intervals import (
    FIRST_LOOK,
    Interval,
    anytime_p,
    confidence_sequence,
    difference_sequence,
    looks,
    wilson,
)
from tests.later import Later

stats = Later("scipy.stats")

TIMES = (16, 25, 40, 80, 120, 200)


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch):
    """Ends of intervals to four digits: how often they cover depends on no further one, and they take half the time."""
    monkeypatch.setattr(intervals, "NEAR", 1e-4)


@cache  # most runs meet counts that others have had
def after(successes: int, failures: int) -> Interval:
    return confidence_sequence([1.0] * successes + [0.0] * failures)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.5, 0.9])
def test_the_sequence_covers_at_all_looks_at_once(rate: float):
    rng, runs, missed = np.random.default_rng(0), 120, 0
    times = list(looks(300))[::3]
    for _ in range(runs):
        sums = np.cumsum(rng.random(300) < rate).tolist()
        missed += any(rate not in after(sums[time - 1], time - sums[time - 1]) for time in times)
    assert missed / runs <= 0.05


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("mean", [0.5, 0.25])
def test_means_over_attempts_are_covered_too(mean: float):
    rng, runs, missed = np.random.default_rng(1), 60, 0
    for _ in range(runs):
        values = (rng.binomial(4, rng.beta(2 * mean, 2 - 2 * mean, size=200)) / 4).tolist()
        missed += any(mean not in confidence_sequence(values[:time]) for time in TIMES)
    assert missed / runs <= 0.05


def test_it_narrows_and_is_wider_than_an_interval_for_a_fixed_number():
    widths = [confidence_sequence([1.0, 0.0] * (count // 2)).width for count in (20, 100, 500, 2_500)]
    fixed = [np.diff(wilson(count / 2, count))[0] for count in (20, 100, 500, 2_500)]
    assert widths == sorted(widths, reverse=True) and widths[-1] < 0.07
    assert all(1.2 < width / other < 2.2 for width, other in zip(widths, fixed, strict=True))


def test_the_ends_are_reached():
    none, all_of_them = confidence_sequence([0.0] * 50), confidence_sequence([1.0] * 50)
    assert none.low == 0.0 and none.high < 0.15 and all_of_them.high == 1.0
    assert all_of_them.low == pytest.approx(1.0 - none.high)


def test_the_bets_are_fair_under_every_claim():
    """The expected capital is exactly 1 if the claimed mean is true: summed over all outcomes of six tasks."""
    for rate in (0.2, 0.5, 0.7):
        expected = 0.0
        for flips in itertools.product((0.0, 1.0), repeat=6):
            share = rate ** sum(flips) * (1 - rate) ** (6 - sum(flips))
            expected += share * _capital(list(flips), rate)
        assert expected == pytest.approx(1.0)


def _capital(values: list[float], mean: float) -> float:
    from bough.evaluation.intervals import _log_capital

    found, counts = np.unique(values, return_counts=True)
    return float(np.exp(_log_capital(found, counts, mean)))


def test_equal_models_are_rarely_told_apart_however_often_one_looks():
    rng, runs, alarms = np.random.default_rng(2), 300, 0
    for _ in range(runs):
        values = rng.choice([1.0, -1.0, 0.0], size=200, p=[0.2, 0.2, 0.6]).tolist()
        alarms += any(anytime_p(values[:time]) < 0.05 for time in looks(200))
    assert alarms / runs <= 0.05


def test_a_real_difference_is_found_in_time():
    rng = np.random.default_rng(3)
    values = rng.choice([1.0, -1.0, 0.0], size=300, p=[0.35, 0.1, 0.55]).tolist()
    assert anytime_p(values) < 0.001 and difference_sequence(values).low > 0.0
    assert anytime_p(values, one_sided=True) < anytime_p(values)
    assert anytime_p([-value for value in values], one_sided=True) == 1.0
    assert anytime_p([-value for value in values]) == pytest.approx(anytime_p(values))


@pytest.mark.parametrize("ups", [20, 24, 26, 28, 30, 34])
def test_p_value_and_interval_say_the_same(ups: int):
    values = [1.0] * ups + [-1.0] * 10 + [0.0] * 20
    assert (anytime_p(values) < 0.05) == (0.0 not in difference_sequence(values))


def test_looks_come_in_steps_that_grow():
    assert list(looks(50)) == [16, 20, 25, 32, 40, 50]
    assert list(looks(5)) == [5] and list(looks(FIRST_LOOK)) == [FIRST_LOOK]
