"""What an error suggests, and which place it names."""

import pytest

from bough.errors import did_you_mean, innermost_place

FLAGS = ["--qlora", "--lora-r", "--learning-rate", "--lr-scheduler", "--batch-size"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--learning-rat", "; did you mean --learning-rate?"),
        ("--lr", "; did you mean --lora-r or --learning-rate?"),
        ("--bs", "; did you mean --batch-size?"),
        ("--colour", "; allowed: --qlora, --lora-r, --learning-rate, --lr-scheduler, --batch-size"),
    ],
)
def test_a_close_word_or_the_words_with_these_initials_are_suggested(word: str, said: str):
    assert did_you_mean(word, FLAGS) == said


def test_of_many_words_only_the_nearest_are_listed():
    many = [f"--{letter * 8}" for letter in "abcdefghijklmnop"]
    assert did_you_mean("--aapp", many).startswith("; the nearest are ")
    listed = did_you_mean("--aapp", many).removeprefix("; the nearest are ").split(", ")
    assert len(listed) == 3 and {"--aaaaaaaa", "--pppppppp"} <= set(listed)


def test_an_error_without_a_place_has_that_of_the_one_before_it_unless_that_is_hidden():
    """As a time limit's, which older versions of Python raise after the author's instead of from it."""
    try:
        raise ValueError("the author's")
    except ValueError as error:
        before = error
    timeout = TimeoutError()
    assert innermost_place(timeout) is None
    timeout.__context__ = before
    assert "test_errors.py:" in (innermost_place(timeout) or "")
    timeout.__suppress_context__ = True
    assert innermost_place(timeout) is None
