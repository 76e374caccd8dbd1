"""Distillation in an environment."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bough.chat.template import load_template
from bough.config.run_folder import MetricsFile
from bough.errors import InputError
from bough.methods.distill import DistillConfig, train_distill
from bough.policy.load import save_policy
from bough.policy.policy import Policy

LETTERS = "tests.online.letters:Letters"


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_teacher(tmp_path_factory.mktemp("teacher"))


def save_teacher(folder: Path) -> Path:
    """The tiny model, with another opinion."""
    policy = Policy.load("tiny")
    torch.manual_seed(5)
    with torch.no_grad():
        for weights in policy.parameters():
            weights += 0.3 * weights.std() * torch.randn_like(weights) if weights.dim() > 1 else 0
    save_policy(policy, load_template("tiny").tokenizer, folder)
    return folder


def trained(folder: Path, teacher: str | Path, **more: Any) -> list[dict[str, Any]]:
    values: dict[str, Any] = {
        "model": "tiny", "teacher": str(teacher), "environment": LETTERS, "output_dir": folder, "max_steps": 3,
        "batch_size": 4, "max_new_tokens": 8, "learning_rate": 1e-2, "lr_scheduler": "constant", "warmup_ratio": 0.0,
        "watch": False,
    }  # fmt: skip
    train_distill(DistillConfig(**values | more))
    return list(MetricsFile.read(folder / "metrics.jsonl"))


def test_the_student_comes_nearer_to_its_teacher(tmp_path: Path, teacher: Path):
    lines = trained(tmp_path, teacher, max_steps=5)
    found = [line["divergence"] for line in lines]
    assert found[-1] < 0.8 * found[0] and found[0] > 0.05, found
    assert all(line["loss"] == pytest.approx(line["divergence"], rel=1e-5) for line in lines)
    assert lines[0]["reward"] > 0 and all(line["logprob_gap_max"] < 1e-4 for line in lines)


def test_another_tokenizer_is_refused_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    other = load_template("tiny").tokenizer.__class__.from_pretrained(load_template("tiny").tokenizer.name_or_path)
    other.add_tokens(["zebra"])
    real = load_template("tiny")

    def load(name: str, *more: Any) -> Any:
        return type("Template", (), {"tokenizer": other})() if name == "far" else real

    monkeypatch.setattr("bough.chat.template.load_template", load)
    with pytest.raises(
        InputError, match=r"far has another tokenizer than tiny: the token 'zebra' is \d+ there and missi"
    ):
        trained(tmp_path, "far")
