"""What every objective returns: a value to differentiate, and its metrics."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bough.metrics import Mean


class Loss(NamedTuple):
    """One micro-batch's share of the optimizer step's loss. Shares add up; so do their metrics."""

    value: Tensor
    metrics: dict[str, Mean]


def share(total: Tensor, denominator: float) -> Tensor:
    """`total` / `denominator`, where `denominator` is the whole optimizer step's, never the micro-batch's."""
    if not 0 < denominator < math.inf:
        raise ValueError(
            f"the denominator is {denominator}; it counts what the whole optimizer step trains and must be positive"
        )
    return total / denominator


def float_vectors(*tensors: Tensor) -> list[Tensor]:
    """The same tensors in float32 or wider. All have one shape [N]: broadcasting would hide a mistake."""
    shape = tensors[0].shape
    assert len(shape) == 1 and all(tensor.shape == shape for tensor in tensors), [t.shape for t in tensors]
    return [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]
