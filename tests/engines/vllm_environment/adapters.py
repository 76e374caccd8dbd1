"""Adapters with weights that change what smollm2 says."""

from __future__ import annotations

from pathlib import Path

import torch

from bough.models.resolve import load_tokenizer
from bough.policy.adapters import Lora
from bough.policy.load import save_policy
from bough.policy.policy import Policy


def make_adapter(folder: Path, *, seed: int, rank: int) -> Policy:
    """A policy with a drawn adapter, which is also saved in `folder`."""
    policy = Policy.load("smollm2", lora=Lora(r=rank, alpha=2 * rank))
    generator = torch.Generator().manual_seed(seed)
    for name, weight in policy.named_parameters():
        if "lora_" in name:
            weight.data = torch.randn(weight.shape, generator=generator) * 0.05
    save_policy(policy, load_tokenizer("smollm2"), folder)
    return policy
