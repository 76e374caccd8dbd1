from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from bough.models.resolve import load_tokenizer, resolve
from bough.policy.adapters import Lora
from bough.policy.load import save_policy
from bough.policy.policy import Policy

IDS = torch.tensor([[5, 6, 7, 8]])


def test_a_saved_adapter_loads_in_plain_peft(tmp_path: Path):
    policy = Policy.load("tiny", lora=Lora(r=4)).eval()
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    save_policy(policy, load_tokenizer("tiny"), tmp_path / "adapter")
    plain = AutoModelForCausalLM.from_pretrained(resolve("tiny"))
    bare = plain(IDS).logits
    loaded = PeftModel.from_pretrained(plain, tmp_path / "adapter")
    assert torch.allclose(loaded(IDS).logits, policy.base(IDS).logits, atol=1e-5)
    assert not torch.allclose(loaded(IDS).logits, bare, atol=1e-2)
    assert AutoTokenizer.from_pretrained(tmp_path / "adapter").chat_template


def test_a_saved_model_loads_in_plain_transformers(tmp_path: Path):
    policy = Policy.load("tiny")
    with torch.no_grad():
        next(policy.parameters()).add_(0.5)
    save_policy(policy, load_tokenizer("tiny"), tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert torch.allclose(loaded(IDS).logits, policy.base(IDS).logits, atol=1e-5)
