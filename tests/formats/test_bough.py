"""What Bough's own format adds to a record."""

from hypothesis import given
from hypothesis import strategies as st

from bough.formats.bough import common_prefix


@given(st.lists(st.integers(0, 1), max_size=20), st.lists(st.integers(0, 1), max_size=20))
def test_the_common_prefix_ends_where_two_lists_or_texts_differ(left: list[int], right: list[int]):
    length = common_prefix(left, right)
    assert left[:length] == right[:length]
    assert length in (len(left), len(right)) or left[length] != right[length]
    assert common_prefix("".join(map(str, left)), "".join(map(str, right))) == length
