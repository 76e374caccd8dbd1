"""Rows: what one forward pass of the model reads, and which answers come out of it.

Small parts share a row up to the token budget. The calls of a row are merged into one
tree again, so parts that landed together also share their common start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bough.trees.build import CallTokens, Ids, TokenTree, input_ids
from bough.trees.partition import partition

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
    targets_N = np.concatenate([np.asarray(call.completion_ids, np.int64) for call in members])
    pairs_M, index_N = np.unique(np.concatenate(predictors) << 32 | targets_N, return_inverse=True)
    lengths = [len(call.completion_ids) for call in members]
    return lengths, pairs_M >> 32, pairs_M & 0xFFFFFFFF, index_N


def _tell_too_long(sizes: list[int], budget: int) -> None:
    if too_long := sum(size > budget for size in sizes):
        log.warning("%d calls are longer than the token budget of %d; each gets its own row", too_long, budget)
