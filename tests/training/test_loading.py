"""Settings that the machine cannot do, or that do not go together, are refused before the model is loaded."""

from pathlib import Path

import pytest
import torch
from accelerate import PartialState

from bough.cli import main

EPISODES = Path(__file__).parents[1] / "samples" / "trl_messages.jsonl"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch):
    PartialState._reset_state()  # it remembers which device other tests found
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for module in (torch.cuda, torch.accelerator):
        monkeypatch.setattr(module, "is_available", lambda: False)
    yield
    PartialState._reset_state()


def refused(capsys: pytest.CaptureFixture[str], run: Path, *more: str) -> str:
    assert main(["sft", "--train-file", str(EPISODES), "--model", "tiny", "--output-dir", str(run), *more]) == 2
    return capsys.readouterr().err


def test_settings_for_a_gpu_are_refused_together_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    said = refused(capsys, tmp_path / "run", "--compile", "--cuda-graphs", "--qlora")
    for name in ("compile", "cuda-graphs", "qlora"):
        assert f"--{name} needs a CUDA device; this is cpu" in said


def test_graphs_are_refused_with_every_setting_that_they_cannot_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    more = ["--cuda-graphs", "--gradient-checkpointing", "--qlora", "--lora-dropout", "0.1"]
    said = refused(capsys, tmp_path / "run", *more)
    for name in ("--gradient-checkpointing", "--qlora", "--lora-dropout"):
        assert f"--cuda-graphs does not go with {name}" in said


def test_a_refused_run_leaves_its_folder_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    refused(capsys, tmp_path / "run", "--cuda-graphs")
    run = ["sft", "--train-file", str(EPISODES), "--model", "tiny", "--output-dir", str(tmp_path / "run")]
    assert main([*run, "--max-steps", "1"]) == 0
