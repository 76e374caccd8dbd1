"""Rows: what one forward pass of the model reads, and which answers come out of it.

Small parts share a row up to the token budget. The calls of a row are merged into one
tree again, so parts that landed together also share their common start.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from bough.ledger import plural
from bough.trees.build import CallTokens, Ids, TokenTree, input_ids, partition

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackedRow:
    """The answers of some calls: N answered tokens, M different predictions among them.

    Prediction m is token `targets_M[m]` after input `predictors_M[m]`; answered token n
    is prediction `index_N[n]`. The tokens of `calls[i]` are the next `lengths[i]` of N.
    """

    calls: list[int]
    lengths: list[int]
    predictors_M: Ids
    targets_M: Ids
    index_N: Ids
    num_raw: int


@dataclass(frozen=True)
class TreeRow(PackedRow):
    """Calls whose common starts are computed once."""

    tree: TokenTree

    @property
    def tokens(self) -> Ids:
        return self.tree.token


@dataclass(frozen=True)
class PlainRow(PackedRow):
    """Calls side by side, each padded at its end to the longest: what every model can do."""

    tokens_BL: Ids

    @property
    def tokens(self) -> Ids:
        return self.tokens_BL


def tree_rows(calls: Sequence[CallTokens], budget: int) -> list[TreeRow]:
    """Partition the tree of `calls` and fill rows of at most `budget` tokens with the parts.

    Calls that answered nothing are in no row.
    """
    parts = partition(calls, budget)
    _tell_too_long([part.num_tokens for part in parts], budget)
    bins = first_fit([part.num_tokens for part in parts], budget)
    return [tree_row(calls, [c for p in chosen for c in parts[p].calls]) for chosen in bins]


def tree_row(calls: Sequence[CallTokens], chosen: list[int]) -> TreeRow:
    """One row with the tree of the chosen calls."""
    members = [calls[c] for c in chosen]
    tree = TokenTree.of(members)
    return TreeRow(chosen, *_answers(members, tree.predictors), tree.num_raw, tree)


def plain_rows(calls: Sequence[CallTokens], budget: int) -> list[PlainRow]:
    """Rows of calls of similar length, at most `budget` tokens with padding."""
    lengths = {c: len(input_ids(call)) for c, call in enumerate(calls) if len(call.completion_ids)}
    _tell_too_long(list(lengths.values()), budget)
    groups: list[list[int]] = []
    for c in sorted(lengths, key=lambda c: -lengths[c]):
        if groups and lengths[groups[-1][0]] * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(c)
        else:
            groups.append([c])
    return [plain_row(calls, group) for group in groups]


def plain_row(calls: Sequence[CallTokens], chosen: list[int]) -> PlainRow:
    """One row with the chosen calls side by side."""
    members = [calls[c] for c in chosen]
    inputs = [input_ids(call) for call in members]
    lengths_B = np.array([len(ids) for ids in inputs])
    tokens_BL = np.zeros((len(inputs), lengths_B.max()), np.int64)
    for tokens_L, ids in zip(tokens_BL, inputs, strict=True):
        tokens_L[: len(ids)] = ids
    stops = np.arange(len(inputs)) * tokens_BL.shape[1] + lengths_B
    predictors = [np.arange(stop - len(call.completion_ids), stop) for stop, call in zip(stops, members, strict=True)]
    return PlainRow(chosen, *_answers(members, predictors), int(lengths_B.sum()), tokens_BL)


def first_fit(sizes: Sequence[int], budget: int) -> list[list[int]]:
    """First-fit decreasing: indices of `sizes`, grouped so that a group's sum is within `budget`."""
    bins: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        b = next((b for b, free in enumerate(room) if sizes[i] <= free), len(bins))
        if b == len(bins):
            bins.append([])
            room.append(budget)
        bins[b].append(i)
        room[b] -= sizes[i]
    return bins


def _answers(members: Sequence[CallTokens], predictors: list[Ids]) -> tuple[list[int], Ids, Ids, Ids]:
    """Number the different (predictor, token) pairs: an answer that calls share is predicted once."""
    lengths = [len(call.completion_ids) for call in members]
    targets_N = np.concatenate([np.asarray(call.completion_ids, np.int64) for call in members])
    pairs_M, index_N = np.unique(np.concatenate(predictors) << 32 | targets_N, return_inverse=True)
    return lengths, pairs_M >> 32, pairs_M & 0xFFFFFFFF, index_N


def _tell_too_long(sizes: list[int], budget: int) -> None:
    if too_long := sum(size > budget for size in sizes):
        said = plural(too_long, "call is", "calls are")
        log.warning("%s longer than the token budget of %d; each gets its own row", said, budget)


# Rows that several owners' calls share: what belongs to one owner is contiguous, and owners share no tokens.
# Each owner reads with weights of its own, so a start that two owners have in common is computed for each of them.
# Everything else is as in `pack`: small parts share a row up to the token budget.

Owner = TypeVar("Owner", bound=Hashable)


class Joined(NamedTuple):
    """Rows as one, and where the tokens of each start and stop, counted over its lines where it has several."""

    row: TreeRow | PlainRow
    segments: list[tuple[int, int]]


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
    return _join_trees(trees, align) if trees else _join_lines([row for row in rows if isinstance(row, PlainRow)])


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
    segments = [(start, start + size) for start, size in zip(starts, sizes, strict=False)]
    return Joined(TreeRow(*_joined_answers(rows, moved), num_raw, tree), segments)


def _join_lines(rows: list[PlainRow]) -> Joined:
    width = max(row.tokens_BL.shape[1] for row in rows)
    tokens_BL = np.concatenate([np.pad(row.tokens_BL, ((0, 0), (0, width - row.tokens_BL.shape[1]))) for row in rows])
    starts = [int(start) * width for start in np.cumsum([0, *(len(row.tokens_BL) for row in rows)])]
    moved = []
    for start, row in zip(starts, rows, strict=False):
        line, place = np.divmod(row.predictors_M, row.tokens_BL.shape[1])
        moved.append(start + line * width + place)
    row = PlainRow(*_joined_answers(rows, moved), sum(row.num_raw for row in rows), tokens_BL)
    return Joined(row, list(itertools.pairwise(starts)))


def _joined_answers(
    rows: Sequence[TreeRow | PlainRow], predictors: list[Ids]
) -> tuple[list[int], list[int], Ids, Ids, Ids]:
    """The answers of all rows, whose predictors are now at `predictors`."""
    lengths = [length for row in rows for length in row.lengths]
    before = np.cumsum([0, *(len(row.targets_M) for row in rows)])
    index_N = np.concatenate([row.index_N + start for start, row in zip(before, rows, strict=False)])
    targets_M = np.concatenate([row.targets_M for row in rows])
    return list(range(len(lengths))), lengths, np.concatenate(predictors), targets_M, index_N
