"""What members are selected on, and what the winner is measured on."""

from pathlib import Path

import pytest

from bough.errors import InputError
from bough.experiments.generation import read_records
from bough.experiments.members import method_of
from bough.methods.dpo import DPOConfig
from bough.policy.load import load_call_builder
from tests.experiments.small import config, pairs


def test_half_of_the_held_out_records_are_kept_for_the_winner(tmp_path: Path):
    method = method_of(DPOConfig(train_file=Path("a.jsonl")))
    builder = load_call_builder("tiny", None, max_length=None, stride=1)
    found = read_records(config(tmp_path), method, builder, pairs(8), pairs(16)[8:])
    selected, kept = ({example.cluster for example in some} for some in (found.selection, found.test))
    assert len(selected) == len(kept) == 4 and not selected & kept
    assert len(found.train) == 8 and not {example.cluster for example in found.train} & (selected | kept)


def test_held_out_records_that_are_trained_or_selected_on_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    method = method_of(DPOConfig(train_file=Path("a.jsonl")))
    builder = load_call_builder("tiny", None, max_length=None, stride=1)
    every = pairs(16)
    found = read_records(config(tmp_path), method, builder, every[:8], every[6:12], every[7:])
    texts = [[example.calls[0].prompt_ids for example in some] for some in (found.train, found.selection, found.test)]
    assert list(map(len, texts)) == [8, 4, 4] and not any(one in texts[0] + texts[1] for one in texts[2])
    assert not any(one in texts[0] for one in texts[1])
    assert [record.message.split(",")[0] for record in caplog.records] == [
        "eval_file: 2 records left out", "test_file: 5 records left out",
    ]  # fmt: skip
    with pytest.raises(InputError, match="test_file has no record that members are not trained or selected on"):
        read_records(config(tmp_path), method, builder, every[:8], every[8:12], every[6:11])
