"""Runs from Python; through the command line they are tested in test_train.py."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from bough.errors import InputError
from bough.methods.examples import IN_MEMORY
from bough.methods.sft import SFT, SFTConfig
from bough.training.run import Trained, train
from bough.trajectories.reader import read

FILE = Path(__file__).parents[2] / "examples" / "household.jsonl"


def settings(folder: Path, **more: Any) -> SFTConfig:
    values = {"model": "tiny", "train_file": IN_MEMORY, "output_dir": folder, "max_steps": 2, "lora_r": 4}
    return SFTConfig(**{**values, **more})


def weights(trained: Trained) -> dict[str, list[float]]:
    return {k: v.flatten().tolist() for k, v in load_file(trained.weights / "adapter_model.safetensors").items()}


def test_records_in_memory_train_the_same_weights_as_on_file_and_resume(tmp_path: Path):
    on_file = settings(tmp_path / "file", train_file=FILE, eval_file=FILE, eval_steps=2)
    expected = weights(train(on_file, SFT(on_file)))
    records = list(read(FILE))
    config = settings(tmp_path / "memory", eval_file=IN_MEMORY, eval_steps=2, max_steps=1, lr_scheduler="constant")
    train(config, SFT(config), iter(records), iter(records))
    assert "eval_loss" in (tmp_path / "memory/metrics.jsonl").read_text()
    whole = settings(tmp_path / "whole", eval_file=IN_MEMORY, eval_steps=2)
    assert weights(train(whole, SFT(whole), records, records)) == expected
    more = SFTConfig(**config.flat_dump() | {"max_steps": 2, "resume": True})
    assert train(more, SFT(more), records, records).counters.step == 2
    with pytest.raises(InputError, match="cannot resume"):
        train(more, SFT(more), records[1:], records)
