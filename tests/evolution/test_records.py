"""What members are selected on, and what the winner is measured on."""

from pathlib import Path

from bough.evolution.records import read_records
from bough.evolution.trainees import method_of
from bough.methods.dpo import DPOConfig
from bough.policy.load import load_call_builder
from tests.evolution.small import config, pairs


def test_half_of_the_held_out_records_are_kept_for_the_winner(tmp_path: Path):
    method = method_of(DPOConfig(train_file=Path("a.jsonl")))
    builder = load_call_builder("tiny", None, max_length=None, stride=1)
    found = read_records(config(tmp_path), method, builder, pairs(8), pairs(16)[8:])
    selected, kept = ({example.cluster for example in some} for some in (found.selection, found.test))
    assert len(selected) == len(kept) == 4 and not selected & kept
    [train] = found.train.values()
    assert len(train) == 8 and not {example.cluster for example in train} & (selected | kept)
