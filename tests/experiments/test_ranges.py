import math
import random
from collections import Counter
from typing import Any

import pytest

from bough.experiments.evolve_settings import Choices, Span, read_ranges

DRAWS = 4000


def test_a_positive_span_is_drawn_evenly_on_a_logarithmic_scale():
    rng = random.Random(1)
    logs = [math.log10(Span(1e-6, 1e-2).draw(rng)) for _ in range(DRAWS)]
    assert min(logs) >= -6 and max(logs) <= -2
    per_decade = Counter(math.floor(value) for value in logs)
    assert all(abs(per_decade[decade] / DRAWS - 1 / 4) < 0.03 for decade in (-6, -5, -4, -3))


def test_a_span_that_contains_zero_is_drawn_evenly():
    rng = random.Random(2)
    values = [Span(0.0, 0.4).draw(rng) for _ in range(DRAWS)]
    assert abs(sum(values) / DRAWS - 0.2) < 0.01 and abs(sum(value < 0.1 for value in values) / DRAWS - 1 / 4) < 0.03


def test_a_perturbation_shrinks_or_grows_with_equal_probability():
    rng = random.Random(3)
    found = Counter(Span(0.01, 10.0).perturb(1.0, rng, shrink=0.8, grow=1.2) for _ in range(DRAWS))
    assert found.keys() == {0.8, 1.2} and abs(found[0.8] / DRAWS - 1 / 2) < 0.03


def test_a_perturbation_stays_inside_its_span():
    found = {Span(0.9, 1.1).perturb(1.0, random.Random(n), shrink=0.8, grow=1.2) for n in range(20)}
    assert found == {0.9, 1.1}


def test_a_whole_number_moves_by_at_least_one():
    assert {Span(1, 8, whole=True).perturb(2, random.Random(n), shrink=0.8, grow=1.2) for n in range(20)} == {1, 3}
    assert all(isinstance(Span(1, 8, whole=True).draw(random.Random(n)), int) for n in range(20))


def test_a_factor_leads_nowhere_from_zero_so_a_value_is_drawn():
    assert 0 < Span(0.0, 0.4).perturb(0.0, random.Random(4), shrink=0.8, grow=1.2) <= 0.4


def test_a_choice_is_another_one_than_the_present_each_as_likely():
    rng = random.Random(5)
    found = Counter(Choices(("a", "b", "c")).perturb("a", rng, shrink=0.8, grow=1.2) for _ in range(DRAWS))
    assert found.keys() == {"b", "c"} and abs(found["b"] / DRAWS - 1 / 2) < 0.03


def test_ranges_are_read_from_flags_and_files():
    flags = read_ranges(["learning_rate=1e-6..1e-4", "loss_type=sigmoid,ipo"])
    assert flags == {"learning_rate": {"min": 1e-6, "max": 1e-4}, "loss_type": ["sigmoid", "ipo"]}
    assert read_ranges({"beta": "0.1..1", "gamma": {"min": 0, "max": 2}}) == {
        "beta": {"min": 0.1, "max": 1.0},
        "gamma": {"min": 0.0, "max": 2.0},
    }
    assert read_ranges(["learning_rate=1e-4,1e-3"]) == {"learning_rate": [1e-4, 1e-3]}  # texts in YAML


@pytest.mark.parametrize(
    "given", [["beta"], {"beta": "2..1"}, {"beta": "a..b"}, {"beta": [1]}, {"beta": {"min": 1}}, {"beta": "0..inf"}]
)
def test_a_range_that_cannot_be_read_is_named(given: Any):
    with pytest.raises(ValueError, match="beta: give a range from a lower to a higher number"):
        read_ranges(given)
    with pytest.raises(ValueError, match="write each as SETTING="):
        read_ranges(["beta=[,"])
    with pytest.raises(ValueError, match="beta is given twice"):
        read_ranges(["beta=1..2", "beta=2..3"])


def test_a_default_outside_the_range_becomes_the_nearest_value_in_it():
    assert [Span(2, 6, whole=True).nearest(value) for value in (1, 4, 9)] == [2, 4, 6]
    assert Span(1.5, 3.0).nearest(None) == 1.5  # a setting that is off
    assert Choices(("ipo", "hinge")).nearest("sigmoid") == "ipo" and Choices((1, 2)).nearest(2) == 2
