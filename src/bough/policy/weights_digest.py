"""A digest of weights, computed where they are."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import torch
from torch import Tensor

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a weight
BLOCK = 1024  # weights that are added up together
HASHED_WHOLE = 1 << 16  # tensors up to this size are hashed as they are: in few weights, changes can cancel in a sum


def weights_digest(weights: Iterable[tuple[str, Tensor]]) -> str:
    """A digest of named tensors.

    The bits of a large tensor are added up as integers, block by block, where the tensor is,
    and only the sums are hashed: integer sums are exact on any device, and a large model need
    not be copied to the CPU. A training step moves nearly all weights, so some sum differs after it.
    """
    hasher = blake2b(digest_size=16)
    for name, weight in weights:
        hasher.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        bits = weight.detach().contiguous().view(-1).view(INTEGERS[weight.element_size()])
        hasher.update((bits if len(bits) <= HASHED_WHOLE else _sums(bits)).cpu().numpy().tobytes())
    return hasher.hexdigest()


def _sums(bits: Tensor) -> Tensor:
    whole = len(bits) // BLOCK * BLOCK
    return torch.cat(
        [bits[:whole].view(-1, BLOCK).sum(-1, dtype=torch.int64), bits[whole:].sum(dtype=torch.int64)[None]]
    )
