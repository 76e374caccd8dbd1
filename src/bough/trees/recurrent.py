"""How state moves through a tree: from each node to its children, never along the row.

Layers that carry state (short convolutions, gated delta nets, Mamba-2) read the tokens of a
row in order, which in a tree is right only until the first fork. A convolution needs the
last few ancestors of a node. A recurrence runs segment by segment: each segment starts from
the final state of the segment that it continues, and all segments of a level run together.
Trees side by side in one row have no common node, so they have no common state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from bough.trees.build import Ids, to_device

# In a tree of so few levels one launch for each level is less work than two passes.
FEW_LEVELS = 3


# Runs a recurrence over S segments, padded to N nodes each. Takes inputs [S, N, ...], zero after a segment's end, and
# the states before the segments, None for states of zero. Gives outputs [S, N, ...] and the states after the segments,
# which padding must not change.
PaddedStep = Callable[[Sequence[Tensor], Tensor | None], tuple[Tensor, Tensor]]
# The same over segments one after the other: inputs and outputs are [1, M, ...], and the segments' bounds [S + 1] come
# last, on the device and on the CPU.
PackedStep = Callable[[Sequence[Tensor], Tensor | None, Tensor, Tensor], tuple[Tensor, Tensor]]


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
                outputs.append(output_SN.flatten(0, 1).index_select(0, batch.slots_M))
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

    def _in_order(self, inputs: Sequence[Tensor], sizes: list[int]) -> list[tuple[Tensor, ...]]:
        """Inputs in the order of the levels, cut into pieces of these sizes.

        Gathered once: the gradient of a gather is as large as what it gathers from.
        """
        ordered = [each_L.index_select(0, self._order) for each_L in inputs]
        return list(zip(*(torch.split_with_sizes(each_L, sizes) for each_L in ordered), strict=True))

    @cached_property
    def levels(self) -> list[Level]:
        levels = []
        for segments in self._segments:
            lengths = segments.lengths.tolist()
            batches, first = [], 0
            for i in range(1, len(lengths) + 1):
                if i == len(lengths) or 2 * lengths[i] < lengths[first]:  # at most half of a batch is padding
                    longest = lengths[first]
                    slots = [s * longest + np.arange(length) for s, length in enumerate(lengths[first:i])]
                    batches.append(Batch(i - first, longest, self._tensor(np.concatenate(slots))))
                    first = i
            bounds = torch.from_numpy(np.append(0, segments.lengths.cumsum()))
            parents_S = self._tensor(segments.parents) if len(segments.parents) else None
            levels.append(Level(batches, parents_S, to_device(bounds, self.device), bounds))
        return levels

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


# Where state branches in a row of trees: the ancestors of a node, and segments by level.
# A segment is a run of nodes without a fork. Its level is the number of segments above it, so all segments of a level
# can be computed once the previous level is.


@dataclass(frozen=True)
class Segments:
    """The segments of one level, the longest first: nodes `starts[s]` to `starts[s] + lengths[s]`.

    Segment s continues segment `parents[s]` of the previous level; at the roots, `parents` is empty.
    """

    starts: Ids
    lengths: Ids
    parents: Ids

    @property
    def nodes(self) -> Ids:
        """The nodes of all segments, one segment after the other."""
        ranges = [np.arange(start, start + length) for start, length in zip(self.starts, self.lengths, strict=True)]
        return np.concatenate([np.empty(0, np.int64), *ranges])

    def chosen(self, which: NDArray[np.bool_]) -> Segments:
        """Some of them, without what they continue."""
        return Segments(self.starts[which], self.lengths[which], np.empty(0, np.int64))


def segments_by_level(parent_L: Ids) -> list[Segments]:
    """The segments of a row. `parent_L` names the node before each node, -1 at a root."""
    has_parent_L = parent_L >= 0
    num_children_L = np.bincount(parent_L[has_parent_L], minlength=len(parent_L))
    follows_L = has_parent_L & (parent_L == np.arange(-1, len(parent_L) - 1)) & (num_children_L[parent_L] == 1)
    starts = (~follows_L).nonzero()[0]
    lengths = np.diff(starts, append=len(parent_L))
    above = np.where(has_parent_L[starts], np.searchsorted(starts, parent_L[starts], "right") - 1, -1)
    level = np.zeros(len(starts), np.int64)
    for segment, parent in enumerate(above):  # parents come first
        level[segment] = level[parent] + 1 if parent >= 0 else 0

    found = []
    place = np.zeros(len(starts), np.int64)  # of each segment in its level
    for depth in range(level.max() + 1):
        chosen = (level == depth).nonzero()[0]
        chosen = chosen[np.argsort(-lengths[chosen], kind="stable")]
        place[chosen] = np.arange(len(chosen))
        parents = place[above[chosen]] if depth else np.empty(0, np.int64)
        found.append(Segments(starts[chosen], lengths[chosen], parents))
    return found


def odd_windows(parent_L: Ids, size: int) -> tuple[Ids, Ids]:
    """The nodes [F] whose last `size` ancestors, themselves included, are not the last nodes of the row.

    With them those ancestors [F, size], the oldest first and -1 where there is none.
    """
    nodes_L = np.arange(len(parent_L))
    ancestors = [nodes_L]
    for _ in range(size - 1):
        ancestors.append(np.where(ancestors[-1] < 0, -1, parent_L[ancestors[-1]]))
    ancestors_LK = np.stack(ancestors[::-1], axis=1)
    in_row_LK = np.maximum(nodes_L[:, None] - np.arange(size)[::-1], -1)
    nodes_F = (ancestors_LK != in_row_LK).any(axis=1).nonzero()[0]
    return nodes_F, ancestors_LK[nodes_F]


# A recurrence that is linear in its state through a deep tree, in two launches instead of one for each level.
# After a segment the state is A @ before + B, whatever the state before was. So one launch gives B (the segment from
# a state of zero) and A (from the identity, with values of zero) of all segments that others continue; small products
# then carry the states from level to level; and a second launch computes the outputs of all segments at once. Roots
# start from zero: their first launch is the last.


@dataclass(frozen=True)
class TwoPass:
    """The order of the nodes: of roots, of segments that are continued (inner ones), of leaves.

    `inner_parents` has, for each level below the roots, where the segments that the inner ones
    continue are in the level above; `leaf_parents` where those of the leaves are among all of them.
    """

    order: Tensor
    num_roots: int
    num_root_nodes: int
    num_inner_nodes: int
    inner_parents: list[Tensor]
    leaf_parents: Tensor
    first: tuple[Tensor, Tensor]
    second: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, levels: Sequence[Segments], tensor: Callable[[Ids], Tensor]) -> TwoPass:
        """The plan for the segments of a row; `tensor` moves an array to the device."""

        def bounds(lengths: Ids) -> tuple[Tensor, Tensor]:
            array = np.append(0, lengths.cumsum())
            return tensor(array), torch.from_numpy(array)

        roots, *later = levels
        inner, leaves, inner_parents, leaf_parents = list[Segments](), list[Segments](), list[Ids](), list[Ids]()
        # Where the segments of the level above are among those that are continued, in the level and in all.
        place, before = np.arange(len(roots.starts)), 0
        for depth, level in enumerate(later, 1):
            parents = place[level.parents]
            continued = np.zeros(len(level.starts), np.bool_)
            if depth < len(later):
                continued[later[depth].parents] = True
            inner.append(level.chosen(continued))
            leaves.append(level.chosen(~continued))
            inner_parents.append(parents[continued])
            leaf_parents.append(before + parents[~continued])
            before += len(roots.starts) if depth == 1 else len(inner_parents[-2])
            place = continued.cumsum() - 1
        inner_lengths = np.concatenate([each.lengths for each in inner])
        leaf_lengths = np.concatenate([each.lengths for each in leaves])
        return cls(
            order=tensor(np.concatenate([each.nodes for each in (roots, *inner, *leaves)])),
            num_roots=len(roots.starts),
            num_root_nodes=int(roots.lengths.sum()),
            num_inner_nodes=int(inner_lengths.sum()),
            inner_parents=[tensor(each) for each in inner_parents if len(each)],
            leaf_parents=tensor(np.concatenate(leaf_parents)),
            first=bounds(np.concatenate([roots.lengths, inner_lengths, inner_lengths])),
            second=bounds(np.concatenate([inner_lengths, leaf_lengths])),
        )

    def scan(self, inputs: Sequence[Tensor], step: PackedStep) -> Tensor:
        """Outputs [L, heads, size] for queries, keys, values [L, heads, size] and gates [L, heads, ...]."""
        # Gathered once: the gradient of a gather is as large as what it gathers from.
        ordered = [each_L.index_select(0, self.order) for each_L in inputs]
        key_size, value_size = inputs[1].shape[-1], inputs[2].shape[-1]
        # Roots, inner segments, and inner segments once more with values of zero.
        stop = self.num_root_nodes + self.num_inner_nodes
        doubled = [torch.cat([each_L[:stop], each_L[self.num_root_nodes : stop]]) for each_L in ordered]
        doubled[2] = pad(ordered[2][:stop], (0, max(0, key_size - value_size), 0, 0, 0, self.num_inner_nodes))
        # States of zero, and the identity for the second half of the inner segments.
        counts = [len(each) for each in self.inner_parents]
        num_inner, width = sum(counts), max(key_size, value_size)
        shape = self.num_roots + 2 * num_inner, inputs[1].shape[-2], key_size, width
        starts = inputs[1].new_zeros(shape, dtype=torch.float32)
        starts[self.num_roots + num_inner :] = torch.eye(key_size, width, device=starts.device)
        output, after = step([each_M[None] for each_M in doubled], starts, *self.first)
        states, added, moved = torch.split_with_sizes(after, [self.num_roots, num_inner, num_inner])
        before, known = [], [states := states[..., :value_size]]
        As = torch.split_with_sizes(moved[..., :key_size], counts)
        Bs = torch.split_with_sizes(added[..., :value_size], counts)
        for parents, A, B in zip(self.inner_parents, As, Bs, strict=True):
            # Indexing adds the gradients of several children in a fixed order; index_select on a GPU does not.
            before.append(states[parents])
            known.append(states := A @ before[-1] + B)
        before.append(torch.cat(known)[self.leaf_parents])
        rest = [each_L[None, self.num_root_nodes :] for each_L in ordered]
        later, _ = step(rest, torch.cat(before), *self.second)
        found = torch.cat([output[0, : self.num_root_nodes, :, :value_size], later[0]])
        return found.index_select(0, self.order.argsort())


# A short causal convolution over a tree.
# The row's own convolution is right wherever a node's last ancestors are the nodes before it in the row, which is
# everywhere except right after a fork or a root. Those few nodes are computed again from their ancestors.


def tree_convolution(
    branching: Branching,
    convolve: Callable[..., Tensor],
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> Tensor:
    """The model's own `convolve` (transformers' `causal_conv1d_fn`) with the ancestors of each node as its past.

    Input and output are [1, channels, L]; the names of the arguments are those of transformers.
    """
    output_1CL = convolve(hidden_states, weight, bias, activation=activation)
    nodes_F, ancestors_FK = branching.windows(weight.shape[1])
    if not len(nodes_F):
        return output_1CL
    past_FKC = hidden_states[0].T[ancestors_FK.clamp(min=0)] * (ancestors_FK >= 0)[..., None]
    again_FC = convolve(past_FKC.transpose(1, 2).contiguous(), weight, bias, activation=activation)[..., -1]
    return output_1CL.index_copy(2, nodes_F, again_FC.T[None].to(output_1CL.dtype))
