"""Cut a tree that is larger than the token budget, repeating as few tokens as possible.

The calls, in the order of the tree, fall into runs of neighbours; each run becomes a
tree of its own and repeats only the path by which it hung on the run before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bough.trees.build import CallTokens, sort_sequences


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
