"""What an error suggests."""

import pytest

from bough.errors import did_you_mean

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
