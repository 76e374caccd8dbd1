"""Rows that several owners' calls share: what belongs to one owner is contiguous, and owners share no tokens.

Each owner reads with weights of its own, so a start that two owners have in common is computed
for each of them. Everything else is as in `pack`: small parts share a row up to the token budget.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from bough.trees.build import CallTokens, Ids, TokenTree
from bough.trees.pack import PlainRow, TreeRow, first_fit, plain_row, tree_row
from bough.trees.partition import partition

Owner = TypeVar("Owner", bound=Hashable)


class Segment(NamedTuple):
    """Tokens `start` to `stop` of a row, counted over its lines where it has several."""

    start: int
    stop: int


class Joined(NamedTuple):
    """Rows as one, and which of its tokens are those of each."""

    row: TreeRow | PlainRow
    segments: list[Segment]


def shared_trees(calls: Mapping[Owner, Sequence[CallTokens]], budget: int) -> list[dict[Owner, TreeRow]]:
    """The trees of each owner's calls by row, at most `budget` tokens a row.

    The numbers in a tree's `calls` are those of its owner's calls.
    """
    parts = [(owner, part) for owner, own in calls.items() for part in partition(own, budget)]
    rows = []
    for chosen in first_fit([part.num_tokens for _, part in parts], budget):
        numbers: dict[Owner, list[int]] = {}
        for owner, part in (parts[p] for p in chosen):
            numbers.setdefault(owner, []).extend(part.calls)
        rows.append({owner: tree_row(calls[owner], own) for owner, own in numbers.items()})
    return rows


def shared_lines(calls: Mapping[Owner, Sequence[CallTokens]], rows: Sequence[PlainRow]) -> list[dict[Owner, PlainRow]]:
    """Plain rows of all owners' calls, one owner's after the other's, split by owner."""
    place = [(owner, c) for owner, own in calls.items() for c in range(len(own))]
    split = []
    for row in rows:
        numbers: dict[Owner, list[int]] = {}
        for owner, c in (place[i] for i in row.calls):
            numbers.setdefault(owner, []).append(c)
        split.append({owner: plain_row(calls[owner], own) for owner, own in numbers.items()})
    return split


def join(rows: Sequence[TreeRow | PlainRow], *, align: int = 1) -> Joined:
    """One row of several that are all trees or all plain, in their order; `calls` count from 0 through all of them.

    The trees begin at multiples of `align`, with padding between them that no other token sees.
    """
    trees = [row for row in rows if isinstance(row, TreeRow)]
    if len(trees) == len(rows):
        return _join_trees(trees, align)
    plain = [row for row in rows if isinstance(row, PlainRow)]
    assert len(plain) == len(rows), "trees and plain rows cannot be computed together"
    return _join_lines(plain)


def _join_trees(rows: list[TreeRow], align: int) -> Joined:
    sizes = [-(-len(row.tree) // align) * align for row in rows]
    starts = [int(start) for start in np.cumsum([0, *sizes])]
    tokens, positions = np.zeros(starts[-1], np.int64), np.zeros(starts[-1], np.int64)
    parents, ends = np.full(starts[-1], -1), np.arange(1, starts[-1] + 1)
    predictors = []
    for start, row in zip(starts, rows, strict=False):
        tree = row.tree
        own = slice(start, start + len(tree))
        tokens[own], positions[own], ends[own] = tree.token, tree.position, tree.end + start
        parents[own] = np.where(tree.parent < 0, -1, tree.parent + start)
        predictors += [nodes + start for nodes in tree.predictors]
    num_raw = sum(row.num_raw for row in rows)
    tree = TokenTree(tokens, positions, parents, ends, predictors, num_raw)
    moved = [row.predictors_M + start for start, row in zip(starts, rows, strict=False)]
    segments = [Segment(start, start + size) for start, size in zip(starts, sizes, strict=False)]
    return Joined(TreeRow(*_joined_answers(rows, moved), num_raw, tree), segments)


def _join_lines(rows: list[PlainRow]) -> Joined:
    width = max(row.tokens_BL.shape[1] for row in rows)
    tokens_BL = np.concatenate([np.pad(row.tokens_BL, ((0, 0), (0, width - row.tokens_BL.shape[1]))) for row in rows])
    starts = [int(start) * width for start in np.cumsum([0, *(len(row.tokens_BL) for row in rows)])]
    moved = []
    for start, row in zip(starts, rows, strict=False):
        line, place = np.divmod(row.predictors_M, row.tokens_BL.shape[1])
        moved.append(start + line * width + place)
    segments = [Segment(start, stop) for start, stop in itertools.pairwise(starts)]
    return Joined(PlainRow(*_joined_answers(rows, moved), sum(row.num_raw for row in rows), tokens_BL), segments)


def _joined_answers(
    rows: Sequence[TreeRow | PlainRow], predictors: list[Ids]
) -> tuple[list[int], list[int], Ids, Ids, Ids]:
    """The answers of all rows, whose predictors are now at `predictors`."""
    lengths = [length for row in rows for length in row.lengths]
    before = np.cumsum([0, *(len(row.targets_M) for row in rows)])
    index_N = np.concatenate([row.index_N + start for start, row in zip(before, rows, strict=False)])
    targets_M = np.concatenate([row.targets_M for row in rows])
    return list(range(len(lengths))), lengths, np.concatenate(predictors), targets_M, index_N
