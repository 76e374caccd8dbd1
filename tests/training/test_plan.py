import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.config.training import CurriculumConfig
from bough.methods.sft import SFTConfig
from bough.training.method import Example, GroupExample
from bough.training.plan import Batch, Plan, PlannedSource, PlannedStep
from bough.types import Call


def plan(clusters: list[str], difficulty: list[float], **options: Any) -> list[PlannedStep]:
    laid_out = Plan(clusters, difficulty, **options)
    return [laid_out[i] for i in range(len(laid_out))]


def steps(count: int, **options: object) -> list[list[int]]:
    settings = {"batch_size": 2, "num_epochs": 1} | options
    return [
        step.examples for step in plan([str(i) for i in range(count)], [float(i) for i in range(count)], **settings)
    ]  # type: ignore[arg-type]


def test_the_plan_is_a_function_of_the_seed():
    assert steps(20, seed=1) == steps(20, seed=1)
    assert steps(20, seed=1) != steps(20, seed=2)


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


def test_where_an_epoch_ends_is_known():
    laid_out = Plan(["a", "b", "c"], [0.0] * 3, batch_size=2, num_epochs=2)
    assert [laid_out.ends_epoch(i) for i in range(4)] == [False, True, False, True]
    with pytest.raises(IndexError):
        laid_out[4]
    # Where a run stops in the middle of an epoch, none has ended.
    cut = Plan(["a", "b", "c"], [0.0] * 3, batch_size=2, num_epochs=2, max_steps=3)
    assert [cut.ends_epoch(i) for i in range(3)] == [False, True, False]


EXAMPLES = [
    Example([Call(prompt_ids=[1], completion_ids=[number])], cluster=str(number), difficulty=float(number))
    for number in range(4)
]


def source(**more: Any) -> PlannedSource:
    config = SFTConfig(train_file=Path("x"), output_dir=Path("y"), batch_size=2, num_epochs=2, **more)
    return PlannedSource(EXAMPLES, config)


def numbers(found: PlannedSource, step: int) -> set[int]:
    return {example.calls[0].completion_ids[0] for example in found.batch(step).examples}


def test_every_example_comes_once_an_epoch():
    found = source()
    assert len(found) == 4
    seen = [(numbers(found, step), found.ends_epoch(step)) for step in range(4)]
    assert seen[0][0] | seen[1][0] == {0, 1, 2, 3} == seen[2][0] | seen[3][0]
    assert [ends for _, ends in seen] == [False, True, False, True]
    assert [found.batch(step).epoch for step in range(4)] == [0, 0, 1, 1]


PLAYED = GroupExample(
    calls=[Call(prompt_ids=[5, 6], completion_ids=[7, 2])],
    advantages=(1.0,),
    old_logprobs=(torch.tensor([-0.5, -2.0]),),
)


def test_calls_and_tensors_are_written_as_plain_json(tmp_path: Path):
    assert Batch([PLAYED], 0).dump(tmp_path / "bad.jsonl") == str(tmp_path / "bad.jsonl")
    (line,) = (tmp_path / "bad.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert row["old_logprobs"] == [[-0.5, -2.0]] and row["calls"][0]["completion_ids"] == [7, 2]


def test_the_first_records_are_named_where_they_have_a_place(tmp_path: Path):
    examples = [replace(PLAYED, place=place) for place in ("a:1", "", "a:3", "a:4")]
    assert Batch(examples, 0).dump(tmp_path / "bad.jsonl").endswith("bad.jsonl (from a:1, a:3…)")


def test_a_bad_batch_is_not_written_through_a_link(tmp_path: Path):
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "bad.jsonl").symlink_to(tmp_path / "mine")
    Batch([PLAYED], 0).dump(tmp_path / "bad.jsonl")
    assert (tmp_path / "mine").read_text() == "precious" and not (tmp_path / "bad.jsonl").is_symlink()
