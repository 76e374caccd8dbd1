"""The matrices of all adapters on a layer, stacked: each token is computed with its own in two matrix products.

The products are with all adapters' matrices side by side, and between the two, all numbers
but those of a token's own adapter are set to zero. That costs as much as one adapter of the
ranks' sum, needs no sorting, and which token has which adapter is read from a tensor: a
recorded CUDA graph stays valid when it changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bough.policy.adapter_weights import LoraPair

SLOTS, RANKS = 4, 8  # stacks grow by multiples of these


class Slots:
    """The number of each adapter in the stacks. 0 is the policy without any of them.

    `version` changes when a graph that was recorded before no longer computes what it should.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}
        self.capacity = 1
        self.version = 0

    def __bool__(self) -> bool:
        return len(self._numbers) > 1

    def __getitem__(self, name: str) -> int:
        return self._numbers[name]

    def take(self, name: str) -> int:
        """The adapter's number, a new one if it has none."""
        if name not in self._numbers:
            taken = set(self._numbers.values())
            number = next(number for number in range(len(taken) + 1) if number not in taken)
            self.version += not self
            self._numbers[name] = number
            self.capacity = max(self.capacity, 1 + _rounded(number, SLOTS))
        return self._numbers[name]

    def free(self, name: str) -> None:
        del self._numbers[name]
        self.version += not self

    def others(self, slot_T: Tensor) -> Tensor:
        """Which adapters are not a token's own: [T, capacity, 1]."""
        number_S = torch.arange(self.capacity, device=slot_T.device)
        return (slot_T[:, None] != number_S)[..., None]


class Stack:
    """The adapters of layers that have the same input and whose outputs, of `sizes`, are joined.

    `first` is the first slot that it has: 1 where slot 0 has no adapter.
    """

    def __init__(self, sizes: Sequence[int], width: int, *, first: int, dtype: torch.dtype, device: torch.device):
        self._sizes, self._first = list(sizes), first
        self._down_SRI = torch.zeros(0, 0, width, dtype=dtype, device=device)
        self._up_SRO = torch.zeros(0, 0, sum(sizes), dtype=dtype, device=device)

    @torch.inference_mode()  # as the tensors are made in it, and no others may be changed outside of it
    def put(self, slot: int, capacity: int, pairs: Sequence[LoraPair | None]) -> bool:
        """Replaces the adapter in a slot; a layer without a pair has none. True if the tensors are new ones."""
        rank = sum(len(pair.down_RI) for pair in pairs if pair is not None)
        grown = bool(rank or self) and self._make_room(capacity - self._first, rank)
        if not self:
            return False
        slot -= self._first
        self._down_SRI[slot] = 0
        self._up_SRO[slot] = 0
        row = begin = 0
        for size, pair in zip(self._sizes, pairs, strict=True):
            if pair is not None:
                end = begin + len(pair.down_RI)
                self._down_SRI[slot, begin:end] = pair.down_RI
                self._up_SRO[slot, begin:end, row : row + size] = pair.up_OR.T
                begin = end
            row += size
        return grown

    def __bool__(self) -> bool:
        return bool(self._down_SRI.numel())

    def factors(self, x_TI: Tensor, others_TS1: Tensor) -> tuple[Tensor, Tensor]:
        """The two matrices whose product is added to the layers' outputs."""
        slots, rank, _ = self._down_SRI.shape
        low_TX = x_TI.to(self._down_SRI.dtype) @ self._down_SRI.flatten(0, 1).T
        low_TX.view(-1, slots, rank).masked_fill_(others_TS1[:, self._first :], 0.0)
        return low_TX, self._up_SRO.flatten(0, 1)

    def _make_room(self, num_slots: int, rank: int) -> bool:
        old_slots, old_rank, _ = self._down_SRI.shape
        shape = max(num_slots, old_slots), max(_rounded(rank, RANKS), old_rank)
        if shape == (old_slots, old_rank):
            return False
        for name in ("_down_SRI", "_up_SRO"):
            old = getattr(self, name)
            new = old.new_zeros(*shape, old.shape[2])
            new[:old_slots, :old_rank] = old
            setattr(self, name, new)
        return True


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step
