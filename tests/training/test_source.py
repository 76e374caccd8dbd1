import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bough.methods.sft import SFTConfig
from bough.online.method import GroupExample
from bough.training.method import Example
from bough.training.plan import Batch, PlannedSource
from bough.types import Call

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


def test_a_step_is_the_same_whoever_asks_and_when():
    late, whole = source(), source()
    assert [numbers(whole, step) for step in range(4)][3] == numbers(late, 3)


def test_an_adaptive_curriculum_goes_on_from_what_a_checkpoint_kept():
    adaptive = {"curriculum": True, "curriculum_start_ratio": 0.5, "curriculum_warmup_epochs": 1}
    found = source(curriculum_success=0.8, **adaptive)
    assert numbers(found, 0) == {0, 1}, "the easy half first"
    found.end_epoch(0.9)
    again = source(curriculum_success=0.8, **adaptive)
    again.restore(found.levels)
    assert found.levels == again.levels == [0, 1] and numbers(found, 1) == numbers(again, 1)


def test_without_a_threshold_nothing_is_told():
    found = source(curriculum=True)
    before = found.levels
    found.end_epoch(0.9)
    assert found.levels == before


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
