import re
from typing import Any
from xml.etree import ElementTree

import pytest

from bough.evaluation.intervals import Interval
from bough.evaluation.success import Measure
from bough.experiments.sweep_table import SweepRow, draw


def row(mean: float | None, **values: Any) -> SweepRow:
    interval = None if mean is None else Interval(max(mean - 0.1, 0), min(mean + 0.1, 1), 0.95, "by hand")
    rates = {} if mean is None else {0: mean - 0.05, 1: mean + 0.05}
    return SweepRow(values, "02-after", 2, rates, Measure(mean, interval, 100))


def circles(svg: str, radius: str) -> list[tuple[float, float]]:
    found = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}circle")
    return [(float(one.get("cx", "")), float(one.get("cy", ""))) for one in found if one.get("r") == radius]


def test_means_seeds_and_intervals_are_where_the_numbers_are():
    svg = draw([row(0.5, beta=0.01), row(0.75, beta=0.1), row(0.25, beta=1.0)])
    (x1, y1), (x2, y2), (x3, y3) = circles(svg, "5")
    assert x2 - x1 == pytest.approx(x3 - x2), "each is ten times the one before"
    assert y1 - y2 == pytest.approx(60) and y3 - y1 == pytest.approx(60), "a quarter of 240 pixels"
    assert sorted(y for x, y in circles(svg, "2.5") if x == x1) == [pytest.approx(y1 - 12), pytest.approx(y1 + 12)]
    assert "beta, logarithmic" in svg
    assert f'x1="{x1}" y1="{y1 + 24}" x2="{x1}" y2="{y1 - 24}"' in svg


@pytest.mark.parametrize(
    ("values", "to_scale", "log"),
    [
        ([0.1, 0.5, 0.6], True, False),
        ([5, 10, 100], True, True),
        ([0, 0.1, 10], True, False),
        ([None, 0.25, 9], False, False),
        ([True, False, 9], False, False),
        ([["episode"], ["parting"], []], False, False),
    ],
)
def test_numbers_are_to_scale_and_other_values_side_by_side(values: list[Any], to_scale: bool, log: bool):
    svg = draw([row(0.5, setting=value) for value in values])
    (x1, _), (x2, _), (x3, _) = circles(svg, "5")
    assert ("logarithmic" in svg) == log
    assert x1 < x2 < x3 and (x2 - x1 == pytest.approx(x3 - x2)) == (not to_scale)


def test_other_settings_are_series_with_a_legend_and_text_is_escaped():
    svg = draw([row(0.5, kinds=["<a>"], beta=b) for b in (1, 2)] + [row(0.6, kinds=["b"], beta=1)])
    assert re.findall(r">beta=(\d)<", svg) == ["1", "2"] and "&lt;a&gt;" in svg and "<a>" not in svg
    assert len(circles(svg, "5")) == 3 + 2, "the legend has one per series"
    assert len({x for x, _ in circles(svg, "5")[1:2] + circles(svg, "5")[3:]}) > 1


def test_a_combination_without_results_is_left_out():
    svg = draw([row(None, beta=1), row(0.5, beta=2)])
    assert len(circles(svg, "5")) == 1 and "beta=1: unknown" in svg
