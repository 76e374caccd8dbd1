"""A recurrence that is linear in its state through a deep tree, in two launches instead of one for each level.

After a segment the state is A @ before + B, whatever the state before was. So one launch gives B
(the segment from a state of zero) and A (from the identity, with values of zero) of all segments that
others continue; small products then carry the states from level to level; and a second launch
computes the outputs of all segments at once. Roots start from zero: their first launch is the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from bough.trees.build import Ids
from bough.trees.segments import Segments


class PackedStep(Protocol):
    """Runs a recurrence over segments one after the other: inputs [1, M, ...], with the segments' bounds [S + 1].

    Takes the states before the segments, None for states of zero, and gives outputs [1, M, ...]
    and the states after the segments.
    """

    def __call__(
        self, inputs: Sequence[Tensor], before_S: Tensor | None, bounds: Tensor, bounds_on_cpu: Tensor, /
    ) -> tuple[Tensor, Tensor]: ...


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
        output, after = step(self._doubled(ordered), self._starts(inputs[1], inputs[2]), *self.first)
        num_inner = (len(after) - self.num_roots) // 2
        states, added, moved = torch.split_with_sizes(after, [self.num_roots, num_inner, num_inner])
        before, known = [], [states := states[..., :value_size]]
        counts = [len(each) for each in self.inner_parents]
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

    def _doubled(self, ordered: Sequence[Tensor]) -> list[Tensor]:
        """Roots, inner segments, and inner segments once more with values of zero."""
        stop = self.num_root_nodes + self.num_inner_nodes
        doubled = [torch.cat([each_L[:stop], each_L[self.num_root_nodes : stop]]) for each_L in ordered]
        values = ordered[2][:stop]
        missing = max(0, ordered[1].shape[-1] - values.shape[-1])
        doubled[2] = pad(values, (0, missing, 0, 0, 0, self.num_inner_nodes))
        return [each_M[None] for each_M in doubled]

    def _starts(self, keys: Tensor, values: Tensor) -> Tensor:
        """States of zero, and the identity for the second half of the inner segments."""
        heads, key_size = keys.shape[-2:]
        num_inner = sum(map(len, self.inner_parents))
        width = max(key_size, values.shape[-1])
        starts = keys.new_zeros(self.num_roots + 2 * num_inner, heads, key_size, width, dtype=torch.float32)
        starts[self.num_roots + num_inner :] = torch.eye(key_size, width, device=keys.device)
        return starts
