"""The optimizer: AdamW, or bitsandbytes' 8-bit kinds of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import nn

from bough.errors import InputError

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
        # One kernel for all weights where there is one; the plain loop is the one that repeats itself to the bit.
        on_gpu = all(parameter.is_cuda for parameter in trained)
        return torch.optim.AdamW(groups, lr=learning_rate, fused=on_gpu)
    if not torch.cuda.is_available():
        raise InputError(f"optimizer {kind} needs CUDA; without it take adamw")
    try:
        from bitsandbytes import optim
    except ImportError:
        raise InputError(f"optimizer {kind} needs bitsandbytes; pip install 'bough[qlora]'") from None
    made: torch.optim.Optimizer = {"adamw_8bit": optim.AdamW8bit, "paged_adamw_8bit": optim.PagedAdamW8bit}[kind](
        groups, lr=learning_rate
    )
    return made
