import numpy as np
import pytest
from hypothesis import given, settings

from bough.errors import InputError
from bough.trees.build import TokenTree, sort_sequences
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


def test_calls_without_a_common_start_are_trees_side_by_side():
    tree = TokenTree.of([call([7, 8], [9]), call([1], [2])])
    assert tree.token.tolist() == [7, 8, 1]
    assert tree.parent.tolist() == [-1, 0, -1]
    assert tree.end.tolist() == [2, 2, 3]


def test_the_largest_branch_comes_first():
    tree = TokenTree.of([call([1, 2], [9]), call([1, 5, 3], [9]), call([1, 5, 4, 6], [9])])
    assert tree.token.tolist() == [1, 5, 4, 6, 3, 2]
    assert tree.end.tolist() == [6, 5, 4, 4, 5, 6]


@settings(deadline=None)
@given(call_sets())
def test_no_branch_is_larger_than_one_before_it(calls):
    tree = TokenTree.of(calls)
    for parent in range(-1, len(tree)):
        children = np.flatnonzero(tree.parent == parent)
        sizes = (tree.end[children] - children).tolist()
        assert sizes == sorted(sizes, reverse=True)


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


def test_numpy_arrays_are_calls_too():
    one = call([1, 2], [3])
    two = type("Arrays", (), {"prompt_ids": np.array([1, 2]), "completion_ids": np.array([3])})()
    assert TokenTree.of([one, two]).token.tolist() == [1, 2]


def test_a_call_that_answered_nothing_reads_nothing():
    tree = TokenTree.of([call([1, 2], []), call([3], [4])])
    assert tree.token.tolist() == [3]
    assert [len(nodes) for nodes in tree.predictors] == [0, 1]
    assert len(TokenTree.of([])) == 0


def test_an_empty_prompt_is_refused():
    with pytest.raises(InputError, match="empty prompt"):
        TokenTree.of([call([], [1, 2])])
