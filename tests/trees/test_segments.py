import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bough.trees.build import TokenTree
from bough.trees.recurrent import odd_windows, segments_by_level
from tests.trees.samples import call_sets

#     0 ─ 1 ─┬─ 2 ─ 3 ─┬─ 4
#            │         └─ 5 ─ 6      8 ─ 9   (another tree)
#            └─ 7
PARENTS = np.array([-1, 0, 1, 2, 3, 3, 5, 1, -1, 8])


def parents(max_nodes: int = 24) -> st.SearchStrategy[np.ndarray]:
    """Random forests in any order in which a parent comes before its children."""
    return st.lists(st.integers(-1, max_nodes), min_size=1, max_size=max_nodes).map(
        lambda drawn: np.array([min(parent, node - 1) for node, parent in enumerate(drawn)], np.int64)
    )


def trees() -> st.SearchStrategy[np.ndarray]:
    return call_sets().map(lambda calls: TokenTree.of(calls).parent)


def test_segments_end_at_forks_and_wait_for_the_segment_they_continue():
    found = [
        (level.starts.tolist(), level.lengths.tolist(), level.parents.tolist()) for level in segments_by_level(PARENTS)
    ]
    assert found == [
        ([0, 8], [2, 2], []),  # the two roots
        ([2, 7], [2, 1], [0, 0]),  # both continue nodes 0 and 1
        ([5, 4], [2, 1], [0, 0]),  # the longest first; both continue nodes 2 and 3
    ]


@given(parents() | trees())
def test_every_node_is_in_one_segment_and_follows_its_parent(parent_L):
    levels = segments_by_level(parent_L)
    nodes = np.concatenate([level.nodes for level in levels])
    assert sorted(nodes) == list(range(len(parent_L)))
    for above, level in zip([None, *levels], levels, strict=False):
        assert sorted(level.lengths, reverse=True) == list(level.lengths)
        for s, (start, length) in enumerate(zip(level.starts, level.lengths, strict=True)):
            inner = np.arange(start + 1, start + length)
            assert (parent_L[inner] == inner - 1).all()
            if above is None:
                assert parent_L[start] == -1 and not len(level.parents)
            else:
                p = level.parents[s]
                assert parent_L[start] == above.starts[p] + above.lengths[p] - 1


def test_windows_after_forks_and_roots_are_found_by_hand():
    nodes_F, ancestors_FK = odd_windows(PARENTS, 3)
    assert dict(zip(nodes_F.tolist(), ancestors_FK.tolist(), strict=True)) == {
        5: [2, 3, 5],
        6: [3, 5, 6],
        7: [0, 1, 7],
        8: [-1, -1, 8],
        9: [-1, 8, 9],
    }


@given(parents() | trees(), st.integers(1, 5))
def test_all_other_windows_are_the_last_nodes_of_the_row(parent_L, size):
    nodes_F, ancestors_FK = odd_windows(parent_L, size)
    odd = dict(zip(nodes_F.tolist(), ancestors_FK.tolist(), strict=True))
    for node in range(len(parent_L)):
        window = [node]
        while len(window) < size:
            window.insert(0, int(parent_L[window[0]]) if window[0] >= 0 else -1)
        in_row = [max(node - back, -1) for back in range(size)][::-1]
        assert odd.get(node, in_row) == window
        assert (node in odd) == (window != in_row)
