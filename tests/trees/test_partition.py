from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.trees.build import TokenTree, partition
from tests.trees.samples import call, call_sets


def size(calls, chosen):
    return len(TokenTree.of([calls[c] for c in chosen]))


def test_a_tree_within_the_budget_stays_whole():
    calls = [call([1, 2], [3, 4]), call([1, 2], [5, 6])]
    (part,) = partition(calls, 4)
    assert (sorted(part.calls), part.num_tokens) == ([0, 1], 4)


def test_a_cut_repeats_only_the_path_from_the_root():
    calls = [call([1, 2], [3, 4]), call([1, 2], [5, 6])]
    assert [(part.calls, part.num_tokens) for part in partition(calls, 3)] == [([0], 3), ([1], 3)]


def test_the_cut_falls_where_least_is_repeated():
    # Three calls, a row holds two: one of the cuts repeats 1 token, the other 3.
    late = [call([1, 2, 2], [9]), call([1, 3, 3], [4, 9]), call([1, 3, 3], [5, 9])]
    assert [part.calls for part in partition(late, 6)] == [[0], [1, 2]]
    early = [call([1, 2, 2], [2, 9]), call([1, 2, 2], [3, 9]), call([1, 4, 4], [9])]
    assert [part.calls for part in partition(early, 6)] == [[0, 1], [2]]


@settings(deadline=None)
@given(call_sets(), st.integers(1, 30))
def test_every_call_is_in_one_part_of_the_size_it_says(calls, budget):
    parts = partition(calls, budget)
    assert sorted(c for part in parts for c in part.calls) == list(range(len(calls)))
    for part in parts:
        assert part.num_tokens == size(calls, part.calls)
        assert part.num_tokens <= budget or len(part.calls) == 1


@settings(deadline=None)
@given(call_sets(max_calls=6), st.integers(4, 20))
def test_no_other_cut_of_the_sorted_calls_computes_fewer_tokens(calls, budget):
    order = sorted(range(len(calls)), key=lambda c: (calls[c].prompt_ids + calls[c].completion_ids)[:-1])
    best = []
    for number in range(len(calls)):
        for cuts in combinations(range(1, len(calls)), number):
            runs = [order[a:b] for a, b in zip((0, *cuts), (*cuts, len(calls)), strict=True)]
            if all(len(run) == 1 or size(calls, run) <= budget for run in runs):
                best.append(sum(size(calls, run) for run in runs))
    assert sum(part.num_tokens for part in partition(calls, budget)) == min(best)


@pytest.mark.parametrize("calls", [[], [call([1], [])]])
def test_nothing_to_compute_has_no_parts(calls):
    assert partition(calls, 10) == []
