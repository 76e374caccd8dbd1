import pytest

from bough.ledger import plural


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (0, "step", "0 steps"),
        (1, "step", "1 step"),
        (2, "bad row", "2 bad rows"),
        (1200, "episode", "1,200 episodes"),
        (1.0, "GPU", "1 GPU"),
        (0.25, "GPU", "0.25 GPUs"),
        (3, "reply", "3 replies"),
        (3, "key", "3 keys"),
        (2, "process", "2 processes"),
        (2, "batch", "2 batches"),
    ],
)
def test_one_thing_is_singular(number: float, noun: str, said: str):
    assert plural(number, noun) == said


def test_a_verb_goes_with_its_number():
    assert plural(1, "call is", "calls are") == "1 call is"
    assert plural(2, "call is", "calls are") == "2 calls are"
