import numpy as np
import pytest
from scipy import stats

from bough.evaluation.mean_test import mean_p


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
