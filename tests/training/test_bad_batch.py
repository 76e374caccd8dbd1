import json
from dataclasses import replace
from pathlib import Path

import torch

from bough.stages.grpo import GroupExample
from bough.training.bad_batch import write_batch
from bough.types import Call

PLAYED = GroupExample(
    calls=[Call(prompt_ids=[5, 6], completion_ids=[7, 2])], advantages=(1.0,), before=(torch.tensor([-0.5, -2.0]),)
)


def test_calls_and_tensors_are_written_as_plain_json(tmp_path: Path):
    assert write_batch(tmp_path / "bad.jsonl", [PLAYED]) == str(tmp_path / "bad.jsonl")
    (line,) = (tmp_path / "bad.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert row["before"] == [[-0.5, -2.0]] and row["calls"][0]["completion_ids"] == [7, 2]


def test_the_first_records_are_named_where_they_have_a_place(tmp_path: Path):
    examples = [replace(PLAYED, place=place) for place in ("a:1", "", "a:3", "a:4")]
    assert write_batch(tmp_path / "bad.jsonl", examples).endswith("bad.jsonl (from a:1, a:3…)")
