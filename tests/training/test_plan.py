from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.config.training import CurriculumConfig
from bough.training.plan import Plan, PlannedStep


def plan(clusters: list[str], difficulty: list[float], **options: Any) -> list[PlannedStep]:
    laid_out = Plan(clusters, difficulty, **options)
    return [laid_out[i] for i in range(len(laid_out))]


def steps(count: int, **options: object) -> list[list[int]]:
    settings = {"batch_size": 2, "num_epochs": 1} | options
    return [
        step.examples for step in plan([str(i) for i in range(count)], [float(i) for i in range(count)], **settings)
    ]  # type: ignore[arg-type]


def test_an_epoch_has_every_example_once():
    planned = steps(5)
    assert sorted(i for step in planned for i in step) == [0, 1, 2, 3, 4]
    assert [len(step) for step in planned] == [2, 2, 1]


def test_the_plan_is_a_function_of_the_seed():
    assert steps(20, seed=1) == steps(20, seed=1)
    assert steps(20, seed=1) != steps(20, seed=2)


def test_each_epoch_has_an_order_of_its_own():
    planned = plan([str(i) for i in range(20)], [0.0] * 20, batch_size=20, num_epochs=2)
    assert [step.epoch for step in planned] == [0, 1]
    assert planned[0].examples != planned[1].examples


def test_clusters_stay_together():
    clusters = ["a", "b", "a", "b", "a"]
    (step,) = plan(clusters, [0.0] * 5, batch_size=5, num_epochs=1)
    assert step.examples in ([0, 2, 4, 1, 3], [1, 3, 0, 2, 4])


def test_max_steps_goes_round_the_data_as_often_as_it_takes():
    planned = steps(5, max_steps=100, num_epochs=1)
    assert len(planned) == 100
    assert len(steps(5, max_steps=2, num_epochs=9)) == 2


def test_half_an_epoch_is_half_the_steps():
    assert len(steps(20, num_epochs=0.5)) == 5
    assert len(steps(20, num_epochs=1.5)) == 15


def test_a_curriculum_begins_with_the_easiest_and_ends_with_all():
    planned = plan(
        [str(i) for i in range(10)], [float(i) for i in range(10)], batch_size=100, num_epochs=4,
        curriculum=CurriculumConfig(start_ratio=0.3, warmup_epochs=2),
    )  # fmt: skip
    assert [sorted(step.examples) for step in planned] == [
        [0, 1, 2],
        [0, 1, 2, 3, 4, 5],
        list(range(10)),
        list(range(10)),
    ]


@pytest.mark.parametrize("options", [{"max_steps": 3}, {}])
def test_no_examples_no_steps(options: dict[str, int]):
    assert plan([], [], batch_size=2, num_epochs=1, **options) == []


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(1, 7), st.floats(0.1, 4), st.integers(0, 5))
def test_whole_epochs_are_fair(count: int, batch: int, epochs: float, seed: int):
    planned = plan([str(i % 3) for i in range(count)], [0.0] * count, batch_size=batch, num_epochs=epochs, seed=seed)
    seen = Counter(i for step in planned if step.epoch < int(epochs) for i in step.examples)
    assert all(seen[i] == int(epochs) for i in range(count))
    assert planned


def adaptive(levels: tuple[int, ...] = (0,)) -> Plan:
    return Plan(
        [str(i) for i in range(10)], [float(i) for i in range(10)], batch_size=2, num_epochs=4, seed=3,
        curriculum=CurriculumConfig(start_ratio=0.4, warmup_epochs=2, success=0.7), levels=levels,
    )  # fmt: skip


def through(laid_out: Plan, successes: list[float], first: int = 0) -> list[list[int]]:
    """The batches from step `first` on, the plan told of each epoch's success as it ends."""
    found = []
    for number in range(first, len(laid_out)):
        found.append(laid_out[number].examples)
        if laid_out.ends_epoch(number) and number + 1 < len(laid_out):
            laid_out.end_epoch(successes[laid_out[number].epoch])
    return found


def test_an_adaptive_curriculum_waits_for_success_and_keeps_the_number_of_steps():
    laid_out = adaptive()
    batches = through(laid_out, [0.5, 0.9, 0.9, 0.9, 0.9])
    assert laid_out.levels[:4] == [0, 0, 1, 2]
    assert len(batches) == len(laid_out) == 2 + 4 + 5 + 5
    assert {i for batch in batches[:4] for i in batch} == {0, 1, 2, 3}


def test_an_adaptive_plan_is_found_again_from_its_levels():
    first = adaptive()
    batches = through(first, [0.5, 0.9, 0.1, 0.9, 0.9, 0.9])
    again = adaptive(tuple(first.levels))
    assert [again[i].examples for i in range(len(again))] == batches


def test_where_an_epoch_ends_is_known():
    laid_out = Plan(["a", "b", "c"], [0.0] * 3, batch_size=2, num_epochs=2)
    assert [laid_out.ends_epoch(i) for i in range(4)] == [False, True, False, True]
    with pytest.raises(IndexError):
        laid_out[4]
    # Where a run stops in the middle of an epoch, none has ended.
    cut = Plan(["a", "b", "c"], [0.0] * 3, batch_size=2, num_epochs=2, max_steps=3)
    assert [cut.ends_epoch(i) for i in range(3)] == [False, True, False]
