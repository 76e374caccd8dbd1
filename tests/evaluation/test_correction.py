import pytest
from statsmodels.stats.multitest import multipletests

from bough.evaluation.correction import holm


@pytest.mark.parametrize("values", [[0.01], [0.04, 0.01, 0.03], [0.5, 0.5, 0.9, 0.001], [0.02, 0.02, 0.02], [1.0, 0.6]])
def test_holm_is_statsmodels(values: list[float]):
    assert holm(values) == pytest.approx(multipletests(values, method="holm")[1])


def test_the_smallest_counts_for_all_and_none_falls_below_a_smaller_one():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []
