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
