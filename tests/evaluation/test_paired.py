import itertools
import math
from functools import cache

import numpy as np
import pytest

from bough.evaluation import intervals
from bough.evaluation.intervals import (
    FIRST_LOOK,
    Interval,
    anytime_p,
    better_p,
    confidence_sequence,
    difference_interval,
    difference_sequence,
    holm,
    looks,
    mean_p,
    outlook,
    sign_flip,
    tasks_needed,
    wilson,
)
from tests.evaluation.equal_means import Rates, all_or_nothing, other_spread, rare_losses, sure_and_unsure
from tests.later import Later

stats = Later("scipy.stats")
contingency_tables = Later("statsmodels.stats.contingency_tables")
multitest = Later("statsmodels.stats.multitest")


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (0, 6), (3, 12), (12, 3), (7, 7), (40, 61)])
def test_a_sign_flip_of_single_attempts_is_mcnemars_test_of_statsmodels(first: int, second: int):
    theirs = contingency_tables.mcnemar([[5, first], [second, 9]], exact=True).pvalue
    differences = [-1.0] * first + [1.0] * second + [0.0] * 14
    assert sign_flip(differences) == pytest.approx(theirs)
    assert sign_flip(differences, one_sided=True) == pytest.approx(stats.binom.sf(second - 1, first + second, 0.5))


def by_hand(values: list[float], one_sided: bool) -> float:
    flips = [sum(s * abs(v) for s, v in zip(signs, values, strict=True)) for signs in FLIPS(len(values))]
    seen = sum(values)
    return float(np.mean([s >= seen - 1e-9 if one_sided else abs(s) >= abs(seen) - 1e-9 for s in flips]))


def FLIPS(count: int) -> list[tuple[int, ...]]:  # noqa: N802
    return list(itertools.product((1, -1), repeat=count))


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        [0.25, 0.5, -0.25, 1.0, 0.75],
        [1 / 3, -2 / 3, 1.0, 0.5],
        [-0.5, -0.25, -1.0],
        [0.5, -0.5],
        [0.123456789, 2.71828, -3.14159, 1.41421],
    ],
)
def test_every_flip_counts(values: list[float], one_sided: bool):
    """Quarters and thirds through the distribution of their sum, odd numbers by going through all flips."""
    assert sign_flip([*values, 0.0], one_sided=one_sided) == pytest.approx(by_hand(values, one_sided))


def test_scipys_permutation_test_agrees():
    values = np.random.default_rng(1).integers(-3, 6, size=12) / 4
    theirs = stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip(values.tolist()) == pytest.approx(theirs.pvalue) and theirs.pvalue < 0.9


def test_draws_stand_for_all_flips_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch):
    values = [float(value) for value in np.random.default_rng(1).normal(0.3, 1.0, size=40)]
    exact = [round(value, 2) for value in values]
    assert sign_flip(values) == pytest.approx(sign_flip(exact), abs=0.01)
    monkeypatch.setattr(intervals, "EXACT_WORK", 0)
    assert sign_flip(exact) == pytest.approx(0.05, abs=0.05)
    assert sign_flip([1.0] * 60) == 1 / (intervals.DRAWS + 1), "never zero, and never too small"
    assert sign_flip(exact, seed=1) == sign_flip(exact, seed=1) != sign_flip(exact, seed=2)


def test_the_work_of_an_exact_count_is_a_table_of_sums_for_every_difference(monkeypatch: pytest.MonkeyPatch):
    differences = [1.0] * 12 + [-1.0] * 3  # sums from -15 to 15
    exact = sign_flip(differences)
    monkeypatch.setattr(intervals, "EXACT_WORK", 15 * 31)
    assert sign_flip(differences) == exact
    monkeypatch.setattr(intervals, "EXACT_WORK", 15 * 31 - 1)
    assert sign_flip(differences) != exact and sign_flip(differences) == pytest.approx(exact, abs=0.01)


def test_the_interval_of_no_differing_task_still_has_a_width():
    assert sign_flip([]) == sign_flip([0.0, 0.0]) == 1.0
    found = difference_interval([0.0] * 50)
    assert found is not None and found.low == -found.high and 0.03 < found.high < 0.06
    assert difference_interval([]) is None


def test_the_interval_is_around_the_difference_and_shrinks_with_tasks():
    few = difference_interval([1.0] * 12 + [-1.0] * 3 + [0.0] * 35)
    many = difference_interval([1.0] * 120 + [-1.0] * 30 + [0.0] * 350)
    assert few is not None and many is not None
    assert few.low < 0.05 < 0.18 in few and 0.1 < many.low < 0.18 < many.high < 0.26
    assert many.width == pytest.approx(few.width / 10**0.5, rel=0.1)


def test_many_distinct_differences_are_drawn_in_rounds(monkeypatch: pytest.MonkeyPatch):
    values = [number / 50 for number in range(50)]
    whole = difference_interval(values)
    monkeypatch.setattr(intervals, "CHUNK", 51 * 999)
    assert difference_interval(values) == whole, "the same draws, in rounds"


@pytest.mark.parametrize(
    ("up", "down", "tasks"), [(0.05, 0.05, 60), (0.2, 0.1, 60), (0.3, 0.1, 100), (0.1, 0.01, 50), (0.4, 0.2, 200)]
)
def test_difference_intervals_cover_95_percent(up: float, down: float, tasks: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(intervals, "RESAMPLES", 1_000)
    rng, inside, runs = np.random.default_rng(7), 0, 300
    for _ in range(runs):
        found = difference_interval(rng.choice([1.0, -1.0, 0.0], size=tasks, p=[up, down, 1 - up - down]).tolist())
        assert found is not None
        inside += found.low - 1e-12 <= up - down <= found.high + 1e-12
    assert 0.925 <= inside / runs < 0.995


@pytest.mark.parametrize(
    ("rates", "tasks", "attempts"),
    [
        (all_or_nothing, 20, 4),
        (all_or_nothing, 100, 8),
        (rare_losses, 60, 4),
        (sure_and_unsure, 40, 4),
        (other_spread, 40, 4),
    ],
)
def test_what_the_table_says_of_models_with_equal_means_holds(
    rates: Rates, tasks: int, attempts: int, monkeypatch: pytest.MonkeyPatch
):
    """Of 300 comparisons about one in twenty may miss: intervals cover zero, two-sided p-values are not below 5%."""
    monkeypatch.setattr(intervals, "RESAMPLES", 1_000)
    rng, runs, inside, alarms = np.random.default_rng(3), 300, 0, 0
    for _ in range(runs):
        before, after = (rng.binomial(attempts, rate) / attempts for rate in rates(rng, tasks))
        differences = (after - before).tolist()
        found = difference_interval(differences)
        assert found is not None
        covers = found.low - 1e-12 <= 0.0 <= found.high + 1e-12
        inside += covers
        if not covers or sign_flip(differences) < 0.05:  # else neither one-sided p-value is below 2.5%
            alarms += 2 * min(better_p(differences), better_p([-value for value in differences])) < 0.05
    assert inside / runs >= 0.93 and alarms / runs <= 0.05 + 2 * (0.05 * 0.95 / runs) ** 0.5


def test_the_larger_of_two_p_values_is_taken():
    skewed, single = [0.25] * 10 + [0.0] * 10, [1.0] * 6 + [-1.0] + [0.0] * 5
    assert better_p(skewed) == mean_p(skewed) > sign_flip(skewed, one_sided=True) == 2**-10
    assert better_p(single) == sign_flip(single, one_sided=True) == pytest.approx(mean_p(single))


@pytest.mark.parametrize(("up", "down"), [(1, 0), (5, 0), (2, 1), (10, 2), (7, 7), (40, 20), (300, 200), (60, 0)])
def test_for_single_attempts_it_is_mcnemars_exact_test(up: int, down: int):
    found = mean_p([1.0] * up + [-1.0] * down + [0.0] * 9)
    assert found == pytest.approx(stats.binom.sf(up - 1, up + down, 0.5), rel=1e-9)


def test_two_differences_by_hand():
    """Half a gain, twice: the chance that E₁/2 + E₂/2 ≤ E₀ is (2/3)²."""
    assert mean_p([0.5, 0.5]) == pytest.approx(4 / 9)


@pytest.mark.parametrize("tasks", [3, 20, 100])
def test_it_is_the_share_of_random_weights_whose_mean_is_not_above_zero(tasks: int):
    rng = np.random.default_rng(tasks)
    differences = rng.integers(-3, 5, size=tasks) / 4
    weights = rng.dirichlet(np.ones(tasks + 1), size=100_000)
    drawn = np.mean(weights @ [*differences, -1.0] <= 0.0)
    assert mean_p(differences.tolist()) == pytest.approx(drawn, abs=0.006)


def test_more_gain_is_more_evidence():
    found = [mean_p([0.5, 0.25, -0.25, 0.5, gain]) for gain in (-1.0, -0.5, 0.0, 0.25, 1.0)]
    assert found == sorted(found, reverse=True) and len(set(found)) == 5


def test_nothing_up_is_no_evidence():
    assert mean_p([]) == mean_p([0.0, 0.0]) == mean_p([-0.5, 0.0]) == 1.0


def test_small_gains_everywhere_do_not_rule_out_a_rare_loss():
    """Twenty tasks, each 2% up, say little about a total loss on one task in fifty."""
    assert mean_p([0.02] * 20) == pytest.approx((1 / 1.02) ** 20)


@pytest.mark.parametrize("values", [[0.01], [0.04, 0.01, 0.03], [0.5, 0.5, 0.9, 0.001], [0.02, 0.02, 0.02], [1.0, 0.6]])
def test_holm_is_statsmodels(values: list[float]):
    assert holm(values) == pytest.approx(multitest.multipletests(values, method="holm")[1])


def test_the_smallest_counts_for_all_and_none_falls_below_a_smaller_one():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []


def test_connors_formula_by_hand():
    """A difference of 0.1 with 0.3 of the tasks differing: 1.96 √0.3 + 0.8416 √0.29 = 1.5267; (1.5267 / 0.1)² = 233."""
    plain = ((1.959964 * math.sqrt(0.3) + 0.841621 * math.sqrt(0.29)) / 0.1) ** 2
    assert plain == pytest.approx(233.1, abs=0.1)
    corrected = plain / 4 * (1 + math.sqrt(1 + 4 / (plain * 0.1))) ** 2
    assert tasks_needed(0.1, 0.3) == pytest.approx(corrected) and math.ceil(corrected) == 253


def test_smaller_differences_and_stricter_tests_need_more():
    assert tasks_needed(0.05, 0.3) > 3 * tasks_needed(0.1, 0.3)
    assert tasks_needed(0.1, 0.3, alpha=0.01) > tasks_needed(0.1, 0.3) > tasks_needed(0.1, 0.15)


@pytest.mark.parametrize(("up", "down"), [(0.2, 0.1), (0.25, 0.05)])
def test_so_many_tasks_do_settle_it_four_times_in_five(up: float, down: float):
    tasks = math.ceil(tasks_needed(up - down, up + down))
    rng, runs = np.random.default_rng(0), 500
    found = sum(
        sign_flip(rng.choice([1.0, -1.0, 0.0], size=tasks, p=[up, down, 1 - up - down]).tolist()) < 0.05
        for _ in range(runs)
    )
    assert 0.76 < found / runs < 0.86


def test_the_outlook_follows_the_discordance_seen():
    found = outlook([1.0] * 9 + [-1.0] * 6 + [0.0] * 85)
    assert found.tasks == math.ceil(tasks_needed(0.03, 16 / 101)) and 1_000 < found.tasks < 2_000
    assert found.detectable is not None and 0.09 < found.detectable < 0.16


def test_the_detectable_difference_is_the_one_that_needs_as_many_tasks():
    found = outlook([1.0] * 15 + [-1.0] * 15 + [0.0] * 70)
    assert found.tasks is None, "no difference was seen"
    assert found.detectable is not None
    assert tasks_needed(found.detectable, 31 / 101) == pytest.approx(100, abs=1)


def test_nothing_seen_is_not_nothing_to_come():
    assert 0.05 < (outlook([0.0] * 100).detectable or 0.0) < 0.15


def test_five_tasks_can_show_nothing_six_can():
    """Five differing tasks, all one way, are p = 2/32."""
    assert outlook([1.0] * 5).detectable is None and outlook([1.0] * 6).detectable is not None


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


@pytest.mark.parametrize("size", [2e-7, 1.0, 1e19])
def test_the_size_of_differences_does_not_matter(size: float):
    assert sign_flip([size] * 10) == 2 / 2**10
