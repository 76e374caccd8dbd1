from hypothesis import given
from hypothesis import strategies as st

from bough.chat.forms import first_mark

TEXT = st.text("ab<", max_size=12)


def test_a_mark_may_be_whole_or_cut_off_at_the_end():
    assert first_mark("see <tool>x", ["<tool>"]) == 4
    assert first_mark("see <to", ["<tool>"]) == 4
    assert first_mark("see <to it", ["<tool>"]) == 10
    assert first_mark("aab", ["aabc", "ab"]) == 0, "the longer one may still come"


@given(TEXT, TEXT, st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3))
def test_what_stands_before_it_is_part_of_no_mark_whatever_follows(text: str, later: str, marks: list[str]):
    safe = first_mark(text, marks)
    whole = text + later
    begins = [at for mark in marks for at in range(len(whole)) if whole.startswith(mark, at)]
    assert min(begins, default=len(whole)) >= safe
    assert first_mark(text, marks, start=safe) == safe
