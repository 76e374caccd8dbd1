import logging

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.trees.build import first_fit, plain_rows, tree_rows
from tests.trees.samples import call, call_sets


def test_first_fit_fills_gaps_with_small_parts_and_a_part_over_the_budget_has_a_row_to_itself():
    assert first_fit([2, 7, 3, 8], budget=10) == [[3, 0], [1, 2]]
    assert first_fit([12, 1, 2], budget=10) == [[0], [2, 1]]


def test_parts_in_one_row_share_their_start_again():
    calls = [call([1, 2], [3, 9]), call([1, 2], [4, 9]), call([5], [6])]
    (row,) = tree_rows(calls, budget=100)
    assert row.tokens.tolist() == [1, 2, 3, 4, 5]
    assert row.num_raw == 7


def test_an_answer_that_calls_share_is_predicted_once():
    calls = [call([1, 2], [3, 4]), call([1, 2], [3, 5]), call([1, 2, 3], [4])]
    (row,) = tree_rows(calls, budget=100)
    found = list(zip(row.tokens[row.predictors_M].tolist(), row.targets_M.tolist(), strict=True))
    assert sorted(found) == [(2, 3), (3, 4), (3, 5)]


@settings(deadline=None)
@given(call_sets(), st.integers(1, 40), st.sampled_from([tree_rows, plain_rows]))
def test_rows_hold_every_answer_once(calls, budget, make):
    rows = make(calls, budget)
    assert sorted(c for row in rows for c in row.calls) == list(range(len(calls)))
    for row in rows:
        assert row.tokens.size <= budget or len(row.calls) == 1
        answered = np.split(row.targets_M[row.index_N], np.cumsum(row.lengths)[:-1])
        assert [ids.tolist() for ids in answered] == [calls[c].completion_ids for c in row.calls]
        before = np.split(row.tokens.ravel()[row.predictors_M][row.index_N], np.cumsum(row.lengths)[:-1])
        expected = [[calls[c].prompt_ids[-1], *calls[c].completion_ids[:-1]] for c in row.calls]
        assert [ids.tolist() for ids in before] == expected


def test_plain_rows_pad_at_the_end():
    (row,) = plain_rows([call([1, 2], [3, 9]), call([4], [9])], budget=6)
    assert row.tokens.tolist() == [[1, 2, 3], [4, 0, 0]]


def test_calls_longer_than_the_budget_are_told(caplog):
    with caplog.at_level(logging.WARNING):
        tree_rows([call([1, 2, 3], [4])], budget=3)
        assert not caplog.text, "as long as the budget is not longer"
        tree_rows([call([1, 2, 3], [4])], budget=2)
    assert "1 call is longer than the token budget of 2" in caplog.text
