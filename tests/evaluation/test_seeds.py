import math
import random

import pytest

from bough.evaluation.results import Lost, ModelResult, Outcome
from bough.evaluation.success import across_seeds, between_seeds, rate_of


def run(solved: str, seed: int = 0) -> ModelResult:
    """A run whose tasks are solved (1) or not (0); tasks of different seeds are different tasks."""
    outcomes = [Outcome(task=f"t{n}", digest=f"{seed}-{n}", success=one == "1") for n, one in enumerate(solved)]
    return ModelResult(name="m", outcomes=outcomes)


def test_every_seed_has_the_same_weight():
    found = across_seeds([run("1111", 0), run("00", 1)])
    assert found.mean == 0.5 and found.episodes == 6
    assert rate_of(run("1110")) == 0.75 and rate_of(run("")) is None


def test_between_seeds_it_is_the_mean_with_students_t():
    """0.4, 0.5 and 0.6: s = 0.1, t = 4.303 for 2 degrees of freedom; Wilson's form shrinks towards one half."""
    found = between_seeds([0.4, 0.5, 0.6], tasks=3000)
    half = 4.30265 * 0.1 / math.sqrt(3)
    effective = 0.25 * 3 / 0.01
    assert (found.high - found.low) / 2 == pytest.approx(half / math.sqrt(1 + 4.30265**2 / effective), rel=1e-4)
    assert found.low + found.high == pytest.approx(1.0)


def test_seeds_that_agree_by_chance_are_as_uncertain_as_their_tasks():
    agree = between_seeds([0.5, 0.5, 0.5], tasks=300)
    assert agree.width == pytest.approx(between_seeds([0.5, 0.5001, 0.4999], tasks=300).width)
    assert agree.width > 2 * 1.96 * math.sqrt(0.25 / 300)
    assert between_seeds([1.0, 1.0, 1.0], tasks=300).low < 0.97


def test_the_wider_of_seeds_and_tasks_counts():
    same_tasks = [run("1" * 10 + "0" * 10) for _ in range(12)]
    assert across_seeds(same_tasks).interval.width == pytest.approx(  # type: ignore[union-attr]
        2 * 2.093 * math.sqrt(0.25 / 20) / math.sqrt(1 + 2.093**2 / 20), rel=1e-3
    ), "20 tasks stay 20 tasks, however many seeds play them"
    other_tasks = [run("1" * 10 + "0" * 10, seed) for seed in range(12)]
    assert across_seeds(other_tasks).interval.width < 0.2, "tasks of one name are not one task"  # type: ignore[union-attr]
    spread = [run("1" * 20, 0), run("0" * 20, 1), run("1" * 10 + "0" * 10, 2)]
    assert across_seeds(spread).interval.width > 0.9  # type: ignore[union-attr]


def test_one_seed_says_that_it_is_one():
    found = across_seeds([run("1100")])
    assert found.interval is not None and found.interval.method == "one seed, by tasks"
    assert across_seeds([]).mean is None


def test_lost_episodes_widen_the_interval():
    lost = [Lost(task=f"l{n}", digest=f"l{n}", why="crash") for n in range(10)]
    whole, torn = run("10" * 20), run("10" * 20).model_copy(update={"lost": lost})
    without, found = across_seeds([whole, run("10" * 20, 1)]), across_seeds([torn, run("10" * 20, 1)])
    assert found.mean == without.mean == 0.5 and found.interval is not None and without.interval is not None
    assert found.interval.low < without.interval.low and found.interval.high > without.interval.high
    assert "lost episodes as failures" in found.interval.method


def test_the_interval_covers_the_mean_of_all_seeds_as_often_as_it_says():
    rng = random.Random(0)
    covered = 0
    for _ in range(300):
        rates = [rng.uniform(0.3, 0.9) for _ in range(3)]  # what seeds come to; their mean is 0.6
        runs = [run("".join("01"[rng.random() < rate] for _ in range(40)), seed) for seed, rate in enumerate(rates)]
        interval = across_seeds(runs).interval
        assert interval is not None
        covered += 0.6 in interval
    assert 0.92 <= covered / 300 <= 0.995
