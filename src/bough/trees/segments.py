"""Where state branches in a row of trees: the ancestors of a node, and segments by level.

A segment is a run of nodes without a fork. Its level is the number of segments above it, so
all segments of a level can be computed once the previous level is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bough.trees.build import Ids


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
