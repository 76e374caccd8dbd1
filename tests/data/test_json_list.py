import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.data import lines
from bough.data.lines import elements
from bough.errors import RowError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='"\\[]{}, a\né😀', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='"\\[],{', max_size=3), inner),
    max_leaves=8,
)


@given(rows=st.lists(values, max_size=5), indent=st.sampled_from([None, 1]), piece=st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_elements_are_those_of_the_list_wherever_the_pieces_part(rows: list[Any], indent: int | None, piece: int):
    text = json.dumps(rows, indent=indent, ensure_ascii=False).encode() + b" \n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "PIECE", piece)
        found = list(elements(io.BytesIO(text[1:]), 1000))
    assert [json.loads(one) for one in found if isinstance(one, bytes)] == rows and len(found) == len(rows)


@given(text=st.text(alphabet='"\\[]{}, a\n', max_size=40), piece=st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_whatever_begins_as_a_list_ends_in_elements_or_an_error(text: str, piece: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "PIECE", piece)
        try:
            found = list(elements(io.BytesIO(text.encode()), 10))
        except RowError:
            return
    assert text.rstrip().endswith("]") and len(found) <= text.count(",") + 1


def test_an_element_that_is_too_long_is_left_out_and_the_next_is_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "PIECE", 16)
    first, long, empty, last = elements(io.BytesIO(b'{"a": 1}, {"b": "' + b"x" * 1000 + b'"},, {"c": 2}]'), 100)
    assert isinstance(first, bytes) and json.loads(first) == {"a": 1}
    assert isinstance(last, bytes) and json.loads(last) == {"c": 2}
    assert isinstance(long, RowError) and long.reason == "too_large"
    assert isinstance(empty, RowError) and empty.reason == "not_json"


def test_nothing_after_the_last_comma_is_an_element_that_is_empty():
    _, empty = elements(io.BytesIO(b"1, ]"), 100)
    assert isinstance(empty, RowError) and empty.reason == "not_json"
    assert list(elements(io.BytesIO(b" ]"), 100)) == []


@pytest.mark.parametrize("text", [b"1, 2", b'{"a": 1}', b"1] 2", b"1}", b'"', b""])
def test_a_list_that_does_not_end_as_one_is_said(text: bytes):
    with pytest.raises(RowError):
        list(elements(io.BytesIO(text), 100))
