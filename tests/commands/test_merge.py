from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from bough.cli import main
from bough.models.resolve import load_tokenizer
from bough.training.adapters import Lora
from bough.training.policy import Policy
from bough.training.saving import save_policy

IDS = torch.tensor([[5, 6, 7, 8]])


def test_a_merged_model_is_plain_and_computes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    policy = Policy.load("tiny", lora=Lora(r=4)).eval()
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    save_policy(policy, load_tokenizer("tiny"), tmp_path / "adapter")
    command = ["merge", str(tmp_path / "adapter"), "-o", str(tmp_path / "model")]
    assert main(command) == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert torch.allclose(merged(IDS).logits, policy.base(IDS).logits, atol=1e-4)
    assert load_tokenizer(str(tmp_path / "model")).chat_template
    assert main(command) == 2
    assert "exists" in capsys.readouterr().err
