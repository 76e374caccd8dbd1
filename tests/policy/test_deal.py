"""Items of different sizes, dealt out so that processes end together."""

from hypothesis import given
from hypothesis import strategies as st

from bough.policy.processes import deal


def test_the_largest_goes_first_to_the_smallest_share():
    # 9 | 7, then 5 to the second (12), 4 to the first (13), 1 to the second (13).
    assert deal([4, 9, 1, 7, 5], 2) == [[0, 1], [2, 3, 4]]


def test_equal_items_go_round_and_a_share_may_be_empty():
    assert deal([3, 3, 3], 2) == [[0, 2], [1]]
    assert deal([3], 2) == [[0], []]


@given(st.lists(st.integers(0, 100)), st.integers(1, 5))
def test_every_item_is_in_one_share_and_no_share_is_larger_by_more_than_one_item(sizes: list[int], count: int):
    shares = deal(sizes, count)
    assert sorted(i for share in shares for i in share) == list(range(len(sizes)))
    loads = [sum(sizes[i] for i in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)
