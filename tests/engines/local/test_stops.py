import pytest

from bough.engines.local.request import StopTexts
from bough.models.resolve import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny")


def first_stop(texts, text, tokenizer):
    """The text up to the token after which the answer ends, or None."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    stops = StopTexts(texts, tokenizer)
    end = next((n for n in range(1, len(ids) + 1) if stops.met(ids[:n])), None)
    return None if end is None else tokenizer.decode(ids[:end])


def test_an_answer_ends_with_the_token_that_completes_the_text(tokenizer):
    kept = first_stop(["ACTION:"], "THOUGHT: I look.\nACTION: go to shelf 1\nACTION: look", tokenizer)
    assert kept.startswith("THOUGHT: I look.\nACTION:")
    assert kept.count("ACTION") == 1


@pytest.mark.parametrize("texts", [["xyz"], [], [""]])
def test_without_its_text_an_answer_goes_on(texts, tokenizer):
    assert first_stop(texts, "THOUGHT: I look.\nACTION: go", tokenizer) is None


def test_the_first_of_several_texts_counts(tokenizer):
    kept = first_stop(["shelf", "look"], "I look at the shelf", tokenizer)
    assert "look" in kept and "shelf" not in kept


def test_a_text_of_many_tokens_is_found_far_behind_the_start(tokenizer):
    end = "the end of this answer, which is long: ⟦über⟧"
    kept = first_stop([end], "word " * 300 + end + " and more", tokenizer)
    assert end in kept and "more" not in kept


def test_a_text_of_characters_that_take_several_tokens_is_found(tokenizer):
    kept = first_stop(["日本"], "a 日本語 b", tokenizer)
    assert kept is not None and kept.startswith("a 日本") and "b" not in kept
