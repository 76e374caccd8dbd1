"""What only a GPU can do: 4-bit weights, 8-bit optimizers, float16, and sharded weights beside FlexAttention."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch._dynamo.utils import counters

from bough.cli import main
from bough.config.run_folder import MetricsFile
from bough.training.step import Step

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SFT = ["sft", "--train-file", str(ROOT / "examples" / "household.jsonl"), "--model", "tiny", "--batch-size", "3"]
SFT += ["--learning-rate", "1e-2", "--max-steps", "12", "--save-steps", "4"]


def train(run: Path, *more: str) -> list[dict[str, Any]]:
    assert main([*SFT, "--output-dir", str(run), *more]) == 0
    return MetricsFile.read(run / "metrics.jsonl")


def resumed(run: Path, *more: str) -> list[dict[str, Any]]:
    """The run once more from the last checkpoint but one, as if it had been killed there."""
    shutil.rmtree(run / "final")
    shutil.rmtree(run / "checkpoints" / "step-00000012")
    return train(run, *more, "--resume")


# A rank of 64 makes the adapter's matrices large enough for bitsandbytes to keep their moments in 8 bits.
@pytest.mark.parametrize(
    "settings",
    [
        ["--qlora", "--lora-r", "64", "--optimizer", "paged_adamw_8bit"],
        ["--qlora", "--lora-r", "64", "--optimizer", "adamw_8bit"],
        ["--no-use-lora", "--optimizer", "adamw_8bit", "--learning-rate", "1e-3"],
    ],
    ids=["4-bit weights, paged", "4-bit weights", "all weights"],
)
def test_8_bit_optimizers_train_and_go_on_from_a_checkpoint(tmp_path: Path, settings: list[str]):
    pytest.importorskip("bitsandbytes", reason="the qlora extra is not installed")
    lines = train(tmp_path / "run", *settings)
    assert lines[-1]["loss"] < 0.9 * lines[0]["loss"]
    state = load_file(tmp_path / "run" / "checkpoints" / "step-00000008" / "optimizer.safetensors")
    assert any(value.dtype == torch.uint8 for value in state.values())
    again = resumed(tmp_path / "run", *settings)
    assert again[-1]["loss"] == pytest.approx(lines[-1]["loss"], rel=0.02)


def test_4_bit_weights_are_4_bits(tmp_path: Path):
    pytest.importorskip("bitsandbytes", reason="the qlora extra is not installed")
    from bough.policy.adapters import Lora
    from bough.policy.policy import Policy

    policy = Policy.load("tiny", quantize=True, lora=Lora(r=4))
    kinds = {type(module).__name__ for module in policy.base.modules()}
    assert "Linear4bit" in kinds
    assert {parameter.dtype for parameter in policy.parameters() if parameter.requires_grad} == {torch.float32}


@pytest.mark.parametrize("tuning", [[], ["--no-use-lora"]], ids=["adapter", "all weights"])
def test_compiled_and_recorded_steps_train_as_plain_ones(tmp_path: Path, tuning: list[str]):
    """In bfloat16, whose rounding differs between the two; a layer with its attention is one graph."""
    plain = train(tmp_path / "plain", *tuning, "--learning-rate", "1e-3", "--no-compile", "--no-cuda-graphs")
    torch._dynamo.reset()
    counters.clear()
    fast = train(tmp_path / "fast", *tuning, "--learning-rate", "1e-3", "--compile", "--cuda-graphs")
    assert not counters["graph_break"]
    for name in ("loss", "grad_norm"):
        assert [line[name] for line in fast] == pytest.approx([line[name] for line in plain], rel=0.05)
    again = resumed(tmp_path / "fast", *tuning, "--learning-rate", "1e-3")  # as the run began, without the flags
    assert again[-1]["loss"] == pytest.approx(fast[-1]["loss"], rel=0.02)
    config = (tmp_path / "fast" / "config.yaml").read_text()
    assert "compile: true" in config and "cuda_graphs: true" in config


def test_a_long_run_chooses_recordings_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    lines = train(tmp_path / "run", "--max-steps", "120", "--learning-rate", "1e-3")
    assert "compile: off (it takes" in caplog.text and "cuda_graphs: on" in caplog.text
    assert len(lines) == 120 and lines[-1]["loss"] < 0.9 * lines[0]["loss"]


@pytest.mark.parametrize("tuning", [[], ["--no-use-lora"]], ids=["adapter", "all weights"])
def test_sharded_weights_train_as_whole_ones(tmp_path: Path, tuning: list[str]):
    """One process: what adds up over several is tested on CPUs; here are bfloat16, its float32 adapter and the GPU."""
    whole = train(tmp_path / "whole", *tuning, "--learning-rate", "1e-3")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "-m", "bough"]
    more = [*tuning, "--learning-rate", "1e-3", "--shard", "--output-dir", str(tmp_path / "run")]
    done = subprocess.run([*command, *SFT, *more], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    sharded = MetricsFile.read(tmp_path / "run" / "metrics.jsonl")
    assert [line["loss"] for line in sharded] == pytest.approx([line["loss"] for line in whole], rel=0.01)


def test_gradient_checkpointing_is_switched_on_beside_compiled_layers_and_recordings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    plain = train(tmp_path / "plain", "--no-bf16", "--no-compile", "--no-cuda-graphs")
    real, tried = Step.run, list[int]()

    def run(self: Step, *given: Any, **options: Any) -> Any:
        found = real(self, *given, **options)  # memory runs out late: gradients are there already
        tried.append(1)
        if len(tried) >= 7 and not self.policy.base.is_gradient_checkpointing:
            raise torch.cuda.OutOfMemoryError("no memory")
        return found

    monkeypatch.setattr(Step, "run", run)
    lines = train(tmp_path / "run", "--no-bf16", "--compile", "--cuda-graphs")
    assert json.loads((tmp_path / "run" / "report.json").read_text())["gradient_checkpointing"]
    assert "trying step 7 again with gradient checkpointing" in caplog.text
    assert [line["loss"] for line in lines] == pytest.approx([line["loss"] for line in plain], rel=0.05)
