"""How state moves through a tree: from each node to its children, never along the row.

Layers that carry state (short convolutions, gated delta nets, Mamba-2) read the tokens of a
row in order, which in a tree is right only until the first fork. A convolution needs the
last few ancestors of a node. A recurrence runs segment by segment: each segment starts from
the final state of the segment that it continues, and all segments of a level run together.
Trees side by side in one row have no common node, so they have no common state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from bough.trees.build import Ids
from bough.trees.segments import Segments, odd_windows, segments_by_level
from bough.trees.two_pass import PackedStep, TwoPass

# In a tree of so few levels one launch for each level is less work than two passes.
FEW_LEVELS = 3


class PaddedStep(Protocol):
    """Runs a recurrence over S segments, padded to N nodes each.

    Takes inputs [S, N, ...], zero after a segment's end, and the states before the segments,
    None for states of zero. Gives outputs [S, N, ...] and the states after the segments,
    which padding must not change.
    """

    def __call__(self, inputs: Sequence[Tensor], before_S: Tensor | None, /) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class Batch:
    """Segments of similar length. `slots_M` is where each of their nodes is in the padded form [S * N]."""

    num_segments: int
    longest: int
    slots_M: Tensor

    def padded(self, nodes_M: Tensor) -> Tensor:
        shape = self.num_segments, self.longest, *nodes_M.shape[1:]
        if len(nodes_M) == self.num_segments * self.longest:
            return nodes_M.view(shape)
        empty = nodes_M.new_zeros(self.num_segments * self.longest, *nodes_M.shape[1:])
        return empty.index_copy(0, self.slots_M, nodes_M).view(shape)

    def unpadded(self, padded_SN: Tensor) -> Tensor:
        return padded_SN.flatten(0, 1).index_select(0, self.slots_M)


@dataclass(frozen=True)
class Level:
    """Segments that run together, in batches, and the segments of the previous level that they continue."""

    batches: list[Batch]
    parents_S: Tensor | None
    bounds: Tensor
    bounds_on_cpu: Tensor

    def before(self, states: Tensor | None) -> Tensor | None:
        """The states that the segments start from."""
        # Indexing adds the gradients of several children in a fixed order; index_select on a GPU does not.
        return None if states is None or self.parents_S is None else states[self.parents_S]


class Branching:
    """The forks of one row. Layers with state get it in place of their attention mask.

    `parent_L` names the node before each node of the row, -1 at a root.
    """

    def __init__(self, parent_L: Ids, device: torch.device) -> None:
        self.parent_L = parent_L
        self.device = device
        self._windows: dict[int, tuple[Tensor, Tensor]] = {}

    def windows(self, size: int) -> tuple[Tensor, Tensor]:
        """Nodes [F] whose last ancestors are not the last nodes of the row, and those ancestors [F, size]."""
        if size not in self._windows:
            nodes_F, ancestors_FK = odd_windows(self.parent_L, size)
            self._windows[size] = self._tensor(nodes_F), self._tensor(ancestors_FK)
        return self._windows[size]

    def scan(self, inputs: Sequence[Tensor], step: PaddedStep) -> Tensor:
        """Run a recurrence through the tree: outputs [L, ...] for inputs [L, ...]."""
        batches = iter(self._in_order(inputs, [len(batch.slots_M) for level in self.levels for batch in level.batches]))
        outputs: list[Tensor] = []
        states: Tensor | None = None
        for level in self.levels:
            before = level.before(states)
            after: list[Tensor] = []
            start = 0
            for batch in level.batches:
                stop = start + batch.num_segments
                padded = [batch.padded(each_M) for each_M in next(batches)]
                output_SN, after_S = step(padded, None if before is None else before[start:stop])
                outputs.append(batch.unpadded(output_SN))
                after.append(after_S)
                start = stop
            states = torch.cat(after)
        return torch.cat(outputs).index_select(0, self._place)

    def packed_scan(self, inputs: Sequence[Tensor], step: PackedStep) -> Tensor:
        """The same for a kernel that takes segments of different lengths: one launch per level."""
        pieces = self._in_order(inputs, [int(level.bounds_on_cpu[-1]) for level in self.levels])
        outputs: list[Tensor] = []
        states: Tensor | None = None
        for level, piece in zip(self.levels, pieces, strict=True):
            packed = [each_M[None] for each_M in piece]
            output, states = step(packed, level.before(states), level.bounds, level.bounds_on_cpu)
            outputs.append(output[0])
        return torch.cat(outputs).index_select(0, self._place)

    def linear_scan(self, inputs: Sequence[Tensor], step: PackedStep) -> Tensor:
        """The same for a recurrence that is linear in its state, with queries, keys, values and gates as inputs."""
        if len(self._segments) <= FEW_LEVELS:
            return self.packed_scan(inputs, step)
        return self._two_pass.scan(inputs, step)

    @cached_property
    def _two_pass(self) -> TwoPass:
        return TwoPass.of(self._segments, self._tensor)

    @cached_property
    def levels(self) -> list[Level]:
        return [self._level(segments) for segments in self._segments]

    def _in_order(self, inputs: Sequence[Tensor], sizes: list[int]) -> list[tuple[Tensor, ...]]:
        """Inputs in the order of the levels, cut into pieces of these sizes.

        Gathered once: the gradient of a gather is as large as what it gathers from.
        """
        ordered = [each_L.index_select(0, self._order) for each_L in inputs]
        return list(zip(*(torch.split_with_sizes(each_L, sizes) for each_L in ordered), strict=True))

    def _level(self, segments: Segments) -> Level:
        lengths = segments.lengths.tolist()
        batches, first = [], 0
        for i in range(1, len(lengths) + 1):
            if i == len(lengths) or 2 * lengths[i] < lengths[first]:  # at most half of a batch is padding
                batches.append(self._batch(lengths[first:i]))
                first = i
        bounds = torch.from_numpy(np.append(0, segments.lengths.cumsum()))
        parents_S = self._tensor(segments.parents) if len(segments.parents) else None
        return Level(batches, parents_S, to_device(bounds, self.device), bounds)

    def _batch(self, lengths: list[int]) -> Batch:
        longest = lengths[0]
        slots = [s * longest + np.arange(length) for s, length in enumerate(lengths)]
        return Batch(len(lengths), longest, self._tensor(np.concatenate(slots)))

    @cached_property
    def _segments(self) -> list[Segments]:
        return segments_by_level(self.parent_L)

    @cached_property
    def _order(self) -> Tensor:
        """The nodes, level by level and segment by segment."""
        return self._tensor(np.concatenate([segments.nodes for segments in self._segments]))

    @cached_property
    def _place(self) -> Tensor:
        """Where each node is in that order."""
        return self._order.argsort()

    def _tensor(self, array: Ids) -> Tensor:
        return to_device(torch.from_numpy(array), self.device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Only from pinned memory is a copy made without waiting for what the GPU still computes."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
