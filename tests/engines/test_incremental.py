import pytest
from hypothesis import given
from hypothesis import strategies as st

from bough.chat.template import ChatTemplate
from bough.engines.chat import IncrementalText
from tests.chat.conftest import tokenizer_of

TEMPLATE = ChatTemplate(tokenizer_of("chatml"), "chatml")


def pieces(ids: list[int], sizes: list[int]) -> list[str]:
    found: list[str] = []
    text, at = IncrementalText(TEMPLATE, found.append), 0
    for size in [*sizes, len(ids)]:
        text.add(ids[at : at + size])
        at += size
    return found


def test_a_character_comes_when_its_last_byte_has_come():
    ids = TEMPLATE.tokenizer("a 🦜 é", add_special_tokens=False)["input_ids"]
    assert len(ids) > len("a 🦜 é"), "the bird has several tokens"
    found = pieces(ids, [1] * len(ids))
    assert "".join(found) == "a 🦜 é" and len(found) > 3 and not any("\ufffd" in piece for piece in found)


def test_the_end_of_the_turn_is_not_text():
    ids = TEMPLATE.tokenizer("hi", add_special_tokens=False)["input_ids"]
    assert "".join(pieces([*ids, TEMPLATE.end_of_turn_id], [1])) == "hi"


@given(st.lists(st.integers(0, len(TEMPLATE.tokenizer) - 1), max_size=20), st.lists(st.integers(1, 3), max_size=20))
def test_the_pieces_of_any_tokens_are_a_beginning_of_their_text(ids: list[int], sizes: list[int]):
    ids = [token for token in ids if token not in TEMPLATE.stop_ids]
    text = TEMPLATE.decode(ids)
    found = "".join(pieces(ids, sizes))
    assert text.startswith(found) and (text.endswith("\ufffd") or text == found)


@pytest.mark.parametrize("text", ["Words  with spaces", "\n\n", "naïve ✓", "日本語"])
def test_a_whole_text_comes_whole(text: str):
    ids = TEMPLATE.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert "".join(pieces(ids, [1] * len(ids))) == text


def test_bytes_that_never_become_a_character_are_given_up():
    [half] = TEMPLATE.tokenizer.convert_tokens_to_ids(["Ã"])  # the first byte of a character of two
    assert TEMPLATE.decode([half]) == "\ufffd"
    assert pieces([half] * 5000, [1] * 5000) == []
