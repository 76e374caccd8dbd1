"""Common rows: each owner's tokens are contiguous, and owners see nothing of each other."""

import numpy as np
import pytest

from bough.trees.build import join, plain_row, plain_rows, shared_lines, shared_trees, tree_row, tree_rows
from bough.types import Call


def call(length: int, *answer: int) -> Call:
    return Call(prompt_ids=list(range(10, 10 + length)), completion_ids=list(answer))


CALLS = {"red": [call(5, 1, 2), call(5, 3, 4), call(3, 5)], "blue": [call(5, 1, 2), call(7, 6, 7, 8)]}


@pytest.mark.parametrize("budget", [6, 9, 100])
def test_every_call_is_in_one_row_of_its_owner(budget: int):
    rows = shared_trees(CALLS, budget)
    for owner, calls in CALLS.items():
        found = sorted(c for row in rows if owner in row for c in row[owner].calls)
        assert found == list(range(len(calls)))
    assert all(sum(len(own.tree) for own in row.values()) <= max(budget, 9) for row in rows)


def test_owners_share_a_row_and_no_tokens():
    (row,) = shared_trees(CALLS, 100)
    alone = {owner: tree_rows(calls, 100)[0] for owner, calls in CALLS.items()}
    assert {owner: len(own.tree) for owner, own in row.items()} == {o: len(own.tree) for o, own in alone.items()}


@pytest.mark.parametrize("align", [1, 8])
def test_joined_trees_keep_their_attention_and_their_answers(align: int):
    rows = [tree_row(calls, list(range(len(calls)))) for calls in CALLS.values()]
    joined, segments = join(rows, align=align)
    assert [start % align for start, _ in segments] == [0, 0]
    assert segments[0][1] == segments[1][0] and segments[1][1] == len(joined.tree)
    node = np.arange(len(joined.tree))
    sees = (node[None, :] <= node[:, None]) & (node[:, None] < joined.tree.end[None, :])
    for row, (start, _) in zip(rows, segments, strict=True):
        inside = slice(start, start + len(row.tree))
        own = np.arange(len(row.tree))
        expected = (own[None, :] <= own[:, None]) & (own[:, None] < row.tree.end[None, :])
        assert (sees[inside, inside] == expected).all()
        assert sees[inside].sum() == expected.sum() and sees[:, inside].sum() == expected.sum()
        assert (joined.tree.token[inside] == row.tree.token).all()
        assert (joined.tree.position[inside] == row.tree.position).all()
    padding = [n for (start, stop), row in zip(segments, rows, strict=True) for n in range(start + len(row.tree), stop)]
    assert (joined.tree.end[padding] == np.array(padding) + 1).all() and (joined.tree.parent[padding] == -1).all()
    check_answers(joined.tree.token, joined)


def test_joined_lines_are_padded_to_the_longest():
    rows = [plain_row(calls, list(range(len(calls)))) for calls in CALLS.values()]
    with pytest.raises(AssertionError, match="mixed"):
        join([*rows, tree_row(CALLS[next(iter(CALLS))], [0])])
    joined, segments = join(rows)
    assert joined.tokens.shape == (5, 9)
    assert segments == [(0, 27), (27, 45)]
    check_answers(joined.tokens.ravel(), joined)


def check_answers(tokens, joined):
    """After each call's prompt its answer is predicted, token by token."""
    calls = [call for own in CALLS.values() for call in own]
    assert joined.calls == list(range(len(calls))) and joined.lengths == [len(c.completion_ids) for c in calls]
    answers = np.split(joined.index_N, np.cumsum(joined.lengths)[:-1])
    for one, index in zip(calls, answers, strict=True):
        assert joined.targets_M[index].tolist() == one.completion_ids
        assert tokens[joined.predictors_M[index]].tolist() == [one.prompt_ids[-1], *one.completion_ids[:-1]]


def test_plain_rows_are_split_by_owner():
    flat = [call for own in CALLS.values() for call in own]
    rows = shared_lines(CALLS, plain_rows(flat, 18))
    assert any(len(row) == 2 for row in rows)
    for owner, calls in CALLS.items():
        assert sorted(c for row in rows if owner in row for c in row[owner].calls) == list(range(len(calls)))
