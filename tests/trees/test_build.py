from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.errors import InputError
from bough.trees.build import TokenTree, partition, sort_sequences
from tests.trees.samples import call, call_sets


def path(tree: TokenTree, node: int) -> list[int]:
    """The nodes from the root to `node`."""
    return [] if node < 0 else [*path(tree, int(tree.parent[node])), node]


def words(tree: TokenTree, node: int) -> tuple[int, ...]:
    return tuple(tree.token[path(tree, node)].tolist())


def test_two_calls_share_their_common_start():
    tree = TokenTree.of([call([1, 2], [3, 4]), call([1, 2], [5, 6])])
    # The last tokens, 4 and 6, predict nothing and are left out.
    assert tree.token.tolist() == [1, 2, 3, 5]
    assert tree.position.tolist() == [0, 1, 2, 2]
    assert tree.parent.tolist() == [-1, 0, 1, 1]
    assert tree.end.tolist() == [4, 4, 3, 4]
    assert [nodes.tolist() for nodes in tree.predictors] == [[1, 2], [1, 3]]
    assert (len(tree), tree.num_raw) == (4, 6)


def test_the_largest_branch_comes_first():
    tree = TokenTree.of([call([1, 2], [9]), call([1, 5, 3], [9]), call([1, 5, 4, 6], [9])])
    assert tree.token.tolist() == [1, 5, 4, 6, 3, 2]
    assert tree.end.tolist() == [6, 5, 4, 4, 5, 6]


@settings(deadline=None)
@given(call_sets())
def test_every_distinct_start_is_one_node(calls):
    tree = TokenTree.of(calls)
    read = [tuple(c.prompt_ids + c.completion_ids)[:-1] for c in calls]
    starts = {ids[:length] for ids in read for length in range(1, len(ids) + 1)}
    assert sorted(words(tree, node) for node in range(len(tree))) == sorted(starts)
    assert tree.num_raw == sum(map(len, read))


@settings(deadline=None)
@given(call_sets())
def test_a_node_sees_its_path_and_nothing_else(calls):
    tree = TokenTree.of(calls)
    for q in range(len(tree)):
        seen = [k for k in range(len(tree)) if k <= q < tree.end[k]]
        assert seen == path(tree, q)
        assert tree.position[q] == len(seen) - 1


@settings(deadline=None)
@given(call_sets())
def test_an_answered_token_is_predicted_from_all_that_came_before_it(calls):
    tree = TokenTree.of(calls)
    for one, predictors in zip(calls, tree.predictors, strict=True):
        ids = one.prompt_ids + one.completion_ids
        expected = [tuple(ids[:length]) for length in range(len(one.prompt_ids), len(ids))]
        assert [words(tree, node) for node in predictors] == expected


def test_sorted_sequences_tell_what_they_share_with_the_one_before():
    found = sort_sequences([call([2, 7], [9]), call([1, 5, 6], [9]), call([1, 5], [8, 9])])
    assert [ids.tolist() for ids in found.inputs] == [[1, 5, 6], [1, 5, 8], [2, 7]]
    assert (found.order, found.shared) == ([1, 2, 0], [0, 2, 0])  # none comes before the first
    assert sort_sequences([]).shared == []


def test_token_ids_sort_as_numbers_not_as_bytes():
    tree = TokenTree.of([call([256, 5], [0]), call([1, 6], [0]), call([256, 7], [0])])
    assert tree.token.tolist() == [256, 5, 7, 1, 6]


def test_a_call_that_answered_nothing_reads_nothing():
    tree = TokenTree.of([call([1, 2], []), call([3], [4])])
    assert tree.token.tolist() == [3]
    assert [len(nodes) for nodes in tree.predictors] == [0, 1]
    assert len(TokenTree.of([])) == 0


def test_an_empty_prompt_is_refused():
    with pytest.raises(InputError, match="empty prompt"):
        TokenTree.of([call([], [1, 2])])


def size(calls, chosen):
    return len(TokenTree.of([calls[c] for c in chosen]))


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
