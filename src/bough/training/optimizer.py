"""The optimizer, AdamW or one of bitsandbytes' 8-bit versions, and its learning rate by step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import nn

from bough.errors import InputError

Decay = Literal["cosine", "linear", "constant"]
Kind = Literal["adamw", "adamw_8bit", "paged_adamw_8bit"]


def make_optimizer(
    parameters: Iterable[tuple[str, nn.Parameter]], *, kind: Kind, learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """An optimizer for the named parameters. Vectors (norms, biases) do not decay."""
    trained = [parameter for _, parameter in parameters if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.dim() > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if kind == "adamw":
        # One kernel for all weights on a GPU; the plain loop elsewhere, which is bit-exact from run to run.
        on_gpu = all(parameter.is_cuda for parameter in trained)
        return torch.optim.AdamW(groups, lr=learning_rate, fused=on_gpu)
    if not torch.cuda.is_available():
        raise InputError(f"optimizer {kind} needs CUDA; use adamw without it")
    try:
        from bitsandbytes import optim
    except ImportError:
        raise InputError(f"optimizer {kind} needs bitsandbytes; pip install 'bough[qlora]'") from None
    made: torch.optim.Optimizer = {"adamw_8bit": optim.AdamW8bit, "paged_adamw_8bit": optim.PagedAdamW8bit}[kind](
        groups, lr=learning_rate
    )
    return made


def learning_rate(step: int, num_steps: int, *, peak: float, warmup_ratio: float, decay: Decay) -> float:
    """The rate of step 0, 1, …, `num_steps` - 1: a function of the step alone, so there is nothing to save.

    It rises in equal parts over the first `warmup_ratio` of the steps (the first step has
    its part already, never 0), reaches `peak` after them, and falls towards 0, which it
    would reach one step after the last.
    """
    warmup = math.ceil(num_steps * warmup_ratio)
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    done = (step - warmup) / max(1, num_steps - warmup)
    if decay == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * done))
    return peak * (1 - done) if decay == "linear" else peak
