"""The token tree: every token that several calls share stands once, laid out depth first.

In that order one integer per node says everything about attention: `end[k]`, where the
subtree of node k ends. Node q sees node k exactly when `k <= q < end[k]`; its position
id is its depth. Calls without a common start are trees side by side, kept apart by the
same vector, so a forest needs no further word.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bough.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor
import logging
from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

from bough.ledger import plural

log = logging.getLogger(__name__)

Ids: TypeAlias = NDArray[np.int64]


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Only from pinned memory is a copy made without waiting for what the GPU still computes."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


class CallTokens(Protocol):
    """What a tree needs of a call; `bough.types.Call` is one."""

    @property
    def prompt_ids(self) -> Sequence[int] | Ids: ...

    @property
    def completion_ids(self) -> Sequence[int] | Ids: ...


@dataclass(frozen=True)
class Sequences:
    """What the model reads of each call, in an order in which calls with a common start are neighbours.

    `inputs[j]` is call `order[j]` without its last token (nothing is predicted from that
    one), `shared[j]` the length of the start it has in common with `inputs[j - 1]`.
    """

    inputs: list[Ids]
    order: list[int]
    shared: list[int]


@dataclass(frozen=True)
class TokenTree:
    """Nodes in depth-first order, the largest branch first. `parent` is -1 at a root.

    `predictors[c]` are the nodes whose hidden states predict the answered tokens of
    call c, in the caller's order of calls. Several calls may share them. `num_raw` is
    how many tokens the calls read one by one, `len(tree)` how many they read here.
    """

    token: Ids
    position: Ids
    parent: Ids
    end: Ids
    predictors: list[Ids]
    num_raw: int

    def __len__(self) -> int:
        return len(self.token)

    @classmethod
    def of(cls, calls: Sequence[CallTokens]) -> TokenTree:
        """Merge the common starts of `calls`: linear in their tokens, no loop over tokens."""
        sequences = largest_first(sort_sequences(calls))
        lengths = [len(ids) for ids in sequences.inputs]
        num_nodes = sum(lengths) - sum(sequences.shared)
        token, position, end = (np.empty(num_nodes, np.int64) for _ in range(3))
        parent = np.arange(-1, num_nodes - 1)
        predictors: list[Ids] = [np.empty(0, np.int64)] * len(calls)

        path = np.empty(max(lengths, default=0), np.int64)  # path[d]: the node at depth d of the call at hand
        start = depth = 0
        for ids, c, shared in zip(sequences.inputs, sequences.order, sequences.shared, strict=True):
            end[path[shared:depth]] = start  # these nodes have no further descendants
            depth, stop = len(ids), start + len(ids) - shared
            token[start:stop] = ids[shared:]
            position[start:stop] = np.arange(shared, depth)
            path[shared:depth] = np.arange(start, stop)
            if start < stop:
                parent[start] = path[shared - 1] if shared else -1
            predictors[c] = path[depth - len(calls[c].completion_ids) : depth].copy()
            start = stop
        end[path[:depth]] = num_nodes
        return cls(token, position, parent, end, predictors, sum(lengths))


def sort_sequences(calls: Sequence[CallTokens]) -> Sequences:
    """Sort what the calls read, so that calls with a common start are neighbours."""
    unsorted = [input_ids(call) for call in calls]
    # Big-endian bytes compare like the numbers they hold, at the speed of memcmp.
    keys = [ids.astype(">u4").tobytes() for ids in unsorted]
    order = sorted(range(len(calls)), key=keys.__getitem__)
    inputs = [unsorted[c] for c in order]
    shared = [_common_start(a, b) for a, b in itertools.pairwise(inputs)]
    return Sequences(inputs, order, [0, *shared] if inputs else [])


@dataclass
class _Branching:
    """Where sequences part: after `depth` common tokens. `size` counts the nodes after it."""

    depth: int
    size: int = 0
    branches: list[tuple[int, int | _Branching]] = field(default_factory=list)  # their sizes; sequences or branchings

    def add(self, branch: int | _Branching, depth: int, size: int) -> None:
        self.size += size + depth - self.depth
        self.branches.append((size + depth - self.depth, branch))


def largest_first(sequences: Sequences) -> Sequences:
    """The same with the largest of the branches first wherever sequences part.

    A key that long stretches of queries see, or do not see, is cheaper for attention than one that
    only a few see between others: with this order a third as many blocks need a mask.
    """
    root = _Branching(0)
    open_branchings = [root]
    for j, ids in enumerate(sequences.inputs):
        shared = sequences.shared[j + 1] if j + 1 < len(sequences.inputs) else 0
        branch, depth, size = j, len(ids), 0  # type: int | _Branching, int, int
        while open_branchings[-1].depth > shared:
            done = open_branchings.pop()
            done.add(branch, depth, size)
            branch, depth, size = done, done.depth, done.size
        if open_branchings[-1].depth < shared:
            open_branchings.append(_Branching(shared))
        open_branchings[-1].add(branch, depth, size)

    inputs, order, starts = [], [], []
    waiting: list[tuple[int | _Branching, int]] = [(root, 0)]
    while waiting:
        branch, shared = waiting.pop()
        if isinstance(branch, int):
            inputs.append(sequences.inputs[branch])
            order.append(sequences.order[branch])
            starts.append(shared)
            continue
        ordered = [b for _, b in sorted(branch.branches, key=lambda sized: -sized[0])]
        waiting += [(b, branch.depth) for b in reversed(ordered[1:])]
        waiting += [(b, shared) for b in ordered[:1]]  # the next one out: it continues where the previous one ended
    return Sequences(inputs, order, starts)


def input_ids(call: CallTokens) -> Ids:
    """What the model reads to predict the answer: all but its last token; nothing for an empty answer."""
    if not len(call.prompt_ids):
        raise InputError("a call has an empty prompt; nothing predicts its first answered token")
    if not len(call.completion_ids):
        return np.empty(0, np.int64)
    parts = np.asarray(call.prompt_ids, np.int64), np.asarray(call.completion_ids[:-1], np.int64)
    return np.concatenate(parts)


def _common_start(a: Ids, b: Ids) -> int:
    length = min(len(a), len(b))
    differs = np.append(a[:length] != b[:length], True)
    return int(differs.argmax())


# Cut a tree that is larger than the token budget, repeating as few tokens as possible.
# The calls, in the order of the tree, fall into runs of neighbours; each run becomes a tree of its own and repeats
# only the path by which it hung on the run before it.


@dataclass(frozen=True)
class Part:
    """Some of the calls, and how many nodes their tree has."""

    calls: list[int]
    num_tokens: int


def partition(calls: Sequence[CallTokens], budget: int) -> list[Part]:
    """Cut where the fewest tokens are repeated, each part within `budget`.

    A single call longer than the budget is a part by itself: the only parts that exceed
    it. Calls that answered nothing are in no part.
    """
    sequences = sort_sequences(calls)
    kept = [j for j, ids in enumerate(sequences.inputs) if len(ids)]
    order = [sequences.order[j] for j in kept]
    shared = np.array([sequences.shared[j] for j in kept], np.int64)
    added = np.array([len(sequences.inputs[j]) for j in kept], np.int64) - shared
    total = np.concatenate([[0], np.cumsum(added)])  # nodes of the first j calls' tree

    # The run i..j costs shared[i] repeated tokens and has shared[i] + total[j] - total[i] nodes;
    # repeated[j] is the least that the first j calls can cost, cut[j] where their last run starts.
    num_calls = len(order)
    repeated = np.zeros(num_calls + 1, np.int64)
    cut = np.zeros(num_calls + 1, np.int64)
    first = np.searchsorted(total, total - budget)
    for j in range(1, num_calls + 1):
        low = min(int(first[j]), j - 1)
        runs = slice(low, j)
        fits = shared[runs] - total[runs] <= budget - total[j]
        fits[-1] = True
        cost = np.where(fits, repeated[runs] + shared[runs], np.iinfo(np.int64).max)
        cut[j] = low + int(cost.argmin())  # the earliest of equals: fewer, larger parts
        repeated[j] = cost.min()

    parts: list[Part] = []
    stop = num_calls
    while stop:
        start = int(cut[stop])
        parts.append(Part(order[start:stop], int(shared[start] + total[stop] - total[start])))
        stop = start
    return parts[::-1]


# Rows: what one forward pass of the model reads, and which answers come out of it.


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
# Everything else is as in `tree_rows`: small parts share a row up to the token budget.

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
    assert len(trees) in (0, len(rows)), "trees and plain rows cannot be mixed"
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
