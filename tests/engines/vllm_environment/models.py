"""A small model that vLLM computes on a CPU: the kernels have no heads as small as those of `tiny`."""

from __future__ import annotations

from pathlib import Path

import torch

from bough.models.resolve import load_tokenizer, resolve


def make_small(folder: Path) -> Path:
    """`tiny` with heads of 32 and random weights that make some tokens clearly likelier than others."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(resolve("tiny"))
    config.head_dim = 32
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config)
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and "embed" not in name:
            weight.data *= 4
    model.save_pretrained(folder)
    load_tokenizer("tiny").save_pretrained(folder)
    return folder
