"""Runs from Python; through the command line they are tested in test_train.py."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from bough.data.base import IN_MEMORY
from bough.data.reader import read
from bough.errors import InputError
from bough.methods.sft import SFT, SFTConfig
from bough.training.run import Trained, start_of, train

FILE = Path(__file__).parents[1] / "samples" / "trl_messages.jsonl"


def settings(folder: Path, **more: Any) -> SFTConfig:
    values = {"model": "tiny", "train_file": IN_MEMORY, "output_dir": folder, "max_steps": 2, "lora_r": 4}
    return SFTConfig(**{**values, **more})


def weights(trained: Trained) -> dict[str, list[float]]:
    return {k: v.flatten().tolist() for k, v in load_file(trained.weights / "adapter_model.safetensors").items()}


def test_records_in_memory_train_the_same_weights_as_on_file_and_resume(tmp_path: Path):
    copy = shutil.copy(FILE, tmp_path / "copy.jsonl")
    on_file = settings(tmp_path / "file", train_file=FILE, eval_file=copy, eval_steps=2)
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


def test_held_out_records_that_are_trained_on_are_told_and_the_training_file_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    rows = FILE.read_text().splitlines(keepends=True)
    (tmp_path / "some.jsonl").write_text("".join(rows[:2]).replace("?", "??", 1))
    config = settings(tmp_path / "run", train_file=FILE, eval_file=tmp_path / "some.jsonl", max_steps=1)
    train(config, SFT(config))
    said = "some.jsonl: 1 of 2 held-out records are also trained on; their loss is not a held-out loss."
    assert said in caplog.text
    same = settings(tmp_path / "other", train_file=FILE, eval_file=FILE.parent / "." / FILE.name)
    with pytest.raises(InputError, match="eval_file is the file that is trained on"):
        train(same, SFT(same))


def test_a_run_records_no_absolute_path_and_resumes_from_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    data = tmp_path / "data" / "demos.jsonl"
    data.parent.mkdir()
    shutil.copy(FILE, data)
    held_out = shutil.copy(FILE, tmp_path / "data" / "held-out.jsonl")
    first = settings(tmp_path / "runs/first", train_file=data, max_steps=1)
    train(first, SFT(first))
    model = str(tmp_path / "runs/first/final")
    config = settings(tmp_path / "runs/second", model=model, train_file=data, eval_file=held_out, max_steps=1)
    train(config, SFT(config))
    written = [file for file in (tmp_path / "runs/second").rglob("*") if file.suffix in (".yaml", ".json", ".jsonl")]
    assert len(written) > 4
    assert [file.name for file in written if str(tmp_path) in file.read_text()] == []
    assert "train_file: ../../data/demos.jsonl\n" in (tmp_path / "runs/second/config.yaml").read_text()
    assert start_of(tmp_path / "runs/second/final") == tmp_path / "runs/first/final"

    more = SFTConfig(**config.flat_dump() | {"max_steps": 2, "resume": True})
    monkeypatch.chdir(tmp_path)
    assert train(more, SFT(more)).counters.step == 2
    assert "train_file: data/demos.jsonl\n" in (tmp_path / "runs/second/config.yaml").read_text()
    assert "max_steps 1 → 2" in caplog.text and "train_file" not in caplog.text  # the same file under another name
    assert start_of(Path("runs/second/final")) == tmp_path / "runs/first/final"
