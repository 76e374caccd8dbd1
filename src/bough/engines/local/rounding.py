"""A LoRA adapter added to 16-bit weights, rounded so that nothing of it is lost on average.

An adapter in training changes most weights by less than half of the distance between two bfloat16
numbers. Rounded to the nearest, such a change disappears: the sampler would draw from the policy
before the update. Rounded up or down at random, with probabilities that keep the mean, what all
weights of a row add up to is kept. A weight that the adapter leaves alone keeps its bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

LOST = 16  # bits of a float32 that bfloat16 does not have


def folds_into(dtype: torch.dtype) -> bool:
    """Whether an adapter can be added to weights of this type."""
    return dtype in (torch.float32, torch.bfloat16)


def folded(weight_OI: Tensor, down_RI: Tensor, up_OR: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """`weight_OI` as it is computed with in `dtype`, plus the adapter's product."""
    with torch.autocast(weight_OI.device.type, enabled=False):
        sum_OI = torch.addmm(weight_OI.to(dtype).float(), up_OR.float(), down_RI.float())
    return sum_OI if dtype == torch.float32 else rounded_at_random(sum_OI, generator)


def rounded_at_random(values: Tensor, generator: torch.Generator) -> Tensor:
    """The float32 `values` in bfloat16: each one of its two neighbours there, such that the mean is the value."""
    noise = torch.randint(0, 1 << LOST, values.shape, dtype=torch.int32, device=values.device, generator=generator)
    # A bfloat16 is the upper half of a float32. Adding a random lower half carries into it as often as it should.
    bits = values.contiguous().view(torch.int32) + noise
    rounded = ((bits >> LOST) << LOST).view(torch.float32).bfloat16()
    return rounded.masked_fill_(values.isnan(), torch.nan)  # with all bits set, it has been carried over to zero
