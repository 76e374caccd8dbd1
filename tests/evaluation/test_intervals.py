import math
from collections.abc import Callable

import numpy as np
import pytest

from bough.evaluation import intervals
from bough.evaluation.intervals import (
    beta_cdf,
    beta_quantile,
    bisect,
    mean_interval,
    rate_interval,
    student_quantile,
    wilson,
)
from tests.later import Later

stats = Later("scipy.stats")
proportion = Later("statsmodels.stats.proportion")


@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (1, 1), (0, 40), (7, 40), (20, 40), (40, 40), (613, 1000)])
@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_wilson_is_statsmodels(successes: int, trials: int, level: float):
    low, high = proportion.proportion_confint(successes, trials, alpha=1 - level, method="wilson")
    assert wilson(successes, trials, level) == pytest.approx((max(low, 0), min(high, 1)), abs=1e-12)


def test_no_success_and_no_failure_reach_the_ends_exactly():
    assert {wilson(0, trials)[0] for trials in range(1, 300)} == {0.0}
    assert {wilson(trials, trials)[1] for trials in range(1, 300)} == {1.0}


@pytest.mark.parametrize("trials", [30, 100, 400])
def test_wilson_covers_95_percent_on_average_over_rates(trials: int):
    """Exactly, by summing the binomial distribution; single rates swing, since counts are whole numbers."""
    ends = [wilson(successes, trials) for successes in range(trials + 1)]
    coverage = []
    for rate in np.linspace(0.05, 0.95, 181):
        chances = stats.binom.pmf(np.arange(trials + 1), trials, rate)
        coverage.append(sum(rng for rng, (low, high) in zip(chances, ends, strict=True) if low <= rate <= high))
    assert abs(np.mean(coverage) - 0.95) < 0.01
    assert min(coverage) > 0.92


@pytest.mark.parametrize(
    ("values", "episodes", "successes", "effective"),
    [
        ([1.0] * 7 + [0.0] * 33, 40, 7, 40),  # one attempt a task is Wilson's
        ([1.0] * 20 + [0.0] * 20, 160, 20, 40),  # attempts that agree are worth one each
        ([0.5] * 40, 160, 80, 160),  # attempts that agree no more than chance are worth all
        ([1.0, 0.5, 0.5, 0.0], 8, 3, 6),  # mean 1/2, variance 1/6: (1/4) · 4 / (1/6) = 6 effective episodes
        ([1.0, 0.5], 8, 2.25, 3),  # mean 3/4, variance 1/8: (3/16) · 2 / (1/8) = 3 effective episodes
        ([0.5], 4, 0.5, 1),  # attempts at one task say nothing about the spread between tasks
        ([1.0] * 10, 80, 10, 10),  # all solved is no certainty however often tried
    ],
)
def test_the_spread_between_tasks_sets_the_effective_number(
    values: list[float], episodes: int, successes: float, effective: int
):
    found = rate_interval(values, episodes)
    clustered = episodes > len(values) > 1
    critical = stats.t.ppf(0.975, len(values) - 1) if clustered else None
    assert found is not None and ("clustered" in found.method) == clustered
    assert (found.low, found.high) == pytest.approx(wilson(successes, effective, critical=critical))


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (2, 2), (1, 4), (30, 30)])
def test_clustered_intervals_cover_95_percent(a: float, b: float):
    """Tasks of Beta(a, b) difficulty, four attempts each; from all-or-nothing tasks to nearly equal ones."""
    rng, inside, runs = np.random.default_rng(2), 0, 600
    for _ in range(runs):
        values = rng.binomial(4, rng.beta(a, b, size=60)) / 4
        found = rate_interval(values.tolist(), 240)
        assert found is not None
        inside += a / (a + b) in found
    assert 0.935 < inside / runs < 0.975


def test_nothing_known_has_no_interval():
    assert rate_interval([], 0) is None
    assert mean_interval([]) is None and mean_interval([3.0]) is None


def test_equal_values_do_not_tell_how_they_spread():
    assert mean_interval([2.0, 2.0, 2.0]) is None and mean_interval([2.0, 2.0, 3.0]) is not None


Draw = Callable[[np.random.Generator, tuple[int, int]], intervals.Floats]


@pytest.mark.parametrize("count", [2, 3, 5, 8, 12, 20, 30, 50])
@pytest.mark.parametrize(
    ("draw", "mean", "least"),
    [
        pytest.param(lambda rng, size: rng.normal(size=size), 0.0, 0.94, id="normal"),
        pytest.param(lambda rng, size: rng.random(size=size), 0.5, 0.91, id="uniform from 0 to 1"),
        pytest.param(lambda rng, size: rng.beta(5, 1, size=size), 5 / 6, 0.89, id="mostly near 1"),
        pytest.param(lambda rng, size: rng.binomial(4, 0.7, size=size) / 4, 0.7, 0.94, id="quarters"),
        pytest.param(lambda rng, size: rng.binomial(1, 0.9, size=size) * 1.0, 0.9, 0.94, id="0 or 1"),
        pytest.param(lambda rng, size: rng.exponential(size=size), 1.0, 0.86, id="exponential"),
        pytest.param(lambda rng, size: rng.lognormal(size=size), math.exp(0.5), 0.8, id="lognormal"),
    ],
)
def test_means_of_few_tasks_are_covered(draw: Draw, mean: float, least: float, count: int):
    """At 95%. A bootstrap covers the normal mean of three values 70 times in 100, of five 84 times."""
    samples = draw(np.random.default_rng(count), (1_500, count)).tolist()
    found = [interval for values in samples if (interval := mean_interval(values)) is not None]
    assert np.mean([mean in interval for interval in found]) >= least


def test_symmetric_values_have_students_interval():
    values = [1.0, 2.0, 4.0, 5.0]
    found = mean_interval(values, 0.9)
    assert found is not None and found.method == "Student's t over tasks"
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.9, 3, 3.0, stats.sem(values)))


def test_the_interval_of_a_mean_follows_a_skew():
    """Student's would be symmetric; few large values reach further up than down."""
    found = mean_interval([0.0] * 45 + [10.0] * 5)
    assert found is not None and found.high - 1.0 > 1.0 - found.low > 0.3
    assert found.low == pytest.approx(stats.t.interval(0.95, 49, 1.0, stats.sem([0.0] * 45 + [10.0] * 5))[0])


@pytest.mark.parametrize(("a", "b"), [(1, 1), (0.5, 0.5), (3, 7), (0.5, 200), (400, 600), (12.5, 0.5)])
@pytest.mark.parametrize("x", [0.0, 1e-9, 0.01, 0.3, 0.5, 0.77, 0.999, 1.0])
def test_the_beta_distribution_is_scipys(a: float, b: float, x: float):
    assert beta_cdf(x, a, b) == pytest.approx(stats.beta.cdf(x, a, b), rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("probability", [0.001, 0.025, 0.5, 0.8, 0.975])
@pytest.mark.parametrize(("a", "b"), [(1, 9), (50, 3), (0.5, 4.5), (700, 300)])
def test_beta_quantiles_are_scipys(probability: float, a: float, b: float):
    assert beta_quantile(probability, a, b) == pytest.approx(stats.beta.ppf(probability, a, b), rel=1e-9)


@pytest.mark.parametrize("degrees", [1, 2, 5, 30, 499])
@pytest.mark.parametrize("probability", [0.01, 0.5, 0.9, 0.975, 0.999])
def test_students_quantiles_are_scipys(degrees: int, probability: float):
    assert student_quantile(probability, degrees) == pytest.approx(
        stats.t.ppf(probability, degrees), rel=1e-8, abs=1e-9
    )


def test_a_crossing_is_found_by_halving():
    for low, high in [(0.0, 2.0), (1.0, 2.0)]:
        assert bisect(lambda x: x * x - 2.0, low, high) == pytest.approx(2**0.5, abs=1e-15)
