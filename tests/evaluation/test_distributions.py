import pytest

from bough.evaluation.intervals import beta_cdf, beta_quantile, bisect, student_quantile
from tests.later import Later

stats = Later("scipy.stats")


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
