from pathlib import Path
from typing import Any

import pytest
import torch

from bough.cli import main
from bough.config.yaml_file import YamlFile
from bough.methods.sft import SFTConfig
from bough.policy.load import load_outline
from bough.policy.processes import Processes
from bough.training import plan
from bough.training.plan import LEAST, MOST, Shape, budget_for, choose_budget, training_bytes
from tests.policy.gpu import GIB, pretend

SMOLLM2 = Shape(parameters=134_515_008, layers=30, hidden=576, inner=1536)
QWEN3_4B = Shape(parameters=4_022_468_096, layers=36, hidden=2560, inner=9728)
ROOT = Path(__file__).parents[2]


def test_the_budget_is_what_fits_into_the_share_of_what_the_weights_leave():
    # A token keeps 30 layers × (34 × 576 + 8 × 1536) = 956,160 bytes; 18 × 134,515,008 are the weights'.
    left = 24 * GIB - 18 * 134_515_008
    expected = int(left * 0.6 / 956_160) // 1024 * 1024
    assert budget_for(SMOLLM2, 24 * GIB, lora_r=None, weight_bytes=18) == expected == 14_336


def test_a_small_gpu_reads_at_least_a_few_calls():
    assert budget_for(QWEN3_4B, 16 * GIB, lora_r=None, weight_bytes=18) == LEAST


def test_what_saves_memory_makes_room_for_tokens():
    plain = budget_for(QWEN3_4B, 80 * GIB, lora_r=64, weight_bytes=2)
    assert LEAST < plain < budget_for(QWEN3_4B, 80 * GIB, lora_r=64, weight_bytes=2, gradient_checkpointing=True)
    assert plain < budget_for(QWEN3_4B, 80 * GIB, lora_r=64, weight_bytes=0.6)
    assert plain < budget_for(QWEN3_4B, 140 * GIB, lora_r=64, weight_bytes=2)
    assert plain > budget_for(QWEN3_4B, 80 * GIB, lora_r=64, weight_bytes=2, share=0.3)


def test_beside_a_sampler_training_takes_what_its_budget_was_chosen_for():
    """A trained weight still needs 14 bytes, and a token what the budget counts, with the same room to spare."""
    outline = load_outline("tiny")
    shape = Shape.of(outline)
    token = shape.layers * (34 * shape.hidden + 8 * shape.inner)
    assert training_bytes(outline, 6000, adapter=False) == 14 * shape.parameters + 10_000 * token
    outline.requires_grad_(False)
    assert training_bytes(outline, 6000, adapter=False) == 10_000 * token
    assert training_bytes(outline, 6000, adapter=True) > 10_000 * token
    assert training_bytes(outline, 6000, adapter=False, gradient_checkpointing=True) < 10_000 * token


class OnGpu(Processes):
    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cuda")


@pytest.mark.parametrize(
    ("settings", "weight"),
    [
        ({}, 2), ({"qlora": True}, 0.6), ({"use_lora": False}, 18),
        ({"use_lora": False, "optimizer": "adamw_8bit"}, 12),
    ],
)  # fmt: skip
def test_on_a_gpu_the_settings_decide_what_a_weight_takes(
    settings: dict[str, Any], weight: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    asked: list[Any] = []
    pretend(monkeypatch, free=24)
    monkeypatch.setattr(plan, "budget_for", lambda *_, **more: asked.append(more) or 4096)
    assert choose_budget(SFTConfig(train_file="x", model="tiny", **settings), OnGpu()) == 4096
    assert asked[0]["weight_bytes"] == weight and asked[0]["lora_r"] == (16 if settings.get("use_lora", True) else None)
    assert caplog.messages == ["token_budget: 4096 (24 GiB of GPU memory are free)."]


def test_passes_that_are_recorded_leave_room_for_as_many_that_are_not(monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, free=0.5)
    plain, recorded = (
        choose_budget(SFTConfig(train_file="x", model="tiny", cuda_graphs=graphs), OnGpu()) for graphs in (False, True)
    )
    assert plain - 2048 <= 2 * recorded <= plain and LEAST < plain < MOST


def test_a_run_keeps_the_budget_that_was_chosen_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    command = ["sft", "--model", "tiny", "--train-file", str(ROOT / "examples" / "household-held-out.jsonl"),
               "--output-dir", str(tmp_path / "run"), "--save-steps", "1"]  # fmt: skip
    monkeypatch.setattr("bough.training.run.choose_budget", lambda *_: 2048)
    assert main([*command, "--max-steps", "1"]) == 0
    assert YamlFile.read(tmp_path / "run" / "config.yaml").values["machine"]["token_budget"] == 2048
    monkeypatch.setattr("bough.training.run.choose_budget", lambda *_: 4096)
    file = tmp_path / "run" / "config.yaml"
    began = file.read_text().replace("machine:\n", "machine:\n  fp16: false\n")  # as earlier versions wrote it
    file.write_text(began.replace("fp16: false", "fp16: true"))
    assert main([*command, "--max-steps", "2", "--resume"]) == 2
    assert "began with fp16 True, which no longer exists; start a new run" in " ".join(capsys.readouterr().err.split())
    file.write_text(began)
    assert main([*command, "--max-steps", "2", "--resume"]) == 0
    assert YamlFile.read(tmp_path / "run" / "config.yaml").values["machine"]["token_budget"] == 2048
    assert main([*command, "--max-steps", "3", "--resume", "--token-budget", "1024"]) == 0
    assert YamlFile.read(tmp_path / "run" / "config.yaml").values["machine"]["token_budget"] == 1024


def test_on_a_cpu_it_is_a_fixed_number():
    """It decides what is computed together, so bits depend on it."""
    assert choose_budget(SFTConfig(train_file="x", model="tiny"), Processes()) == 8192
