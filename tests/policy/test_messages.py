"""Errors on their way from the first process to the others; tests/online/test_shared_source.py has real processes."""

import pickle

import pytest

from bough.errors import BoughError, InputError
from bough.policy.processes import packed_error
from bough.training.plan import PausedError


class StubbornError(Exception):
    def __init__(self, number: int, what: str) -> None:
        super().__init__(f"{what} {number}")


class RoomError(BoughError):
    exit_code = 7

    def __init__(self, number: int, what: str) -> None:
        super().__init__(f"{what} {number}")


@pytest.mark.parametrize(
    "error",
    [
        InputError("these settings:", ["a", "b"], hint="c"),
        PausedError("paused"),
        KeyboardInterrupt(),
        OSError(28, "full"),
    ],
)
def test_an_error_arrives_as_it_is(error: BaseException):
    value, received = pickle.loads(packed_error(error))
    assert value is None
    assert type(received) is type(error) and str(received) == str(error)


def test_an_error_that_cannot_be_pickled_arrives_as_its_text():
    _, received = pickle.loads(packed_error(StubbornError(3, "room")))
    assert type(received) is BoughError and str(received) == "StubbornError: room 3"


def test_one_of_ours_keeps_its_words_and_its_exit_code():
    _, received = pickle.loads(packed_error(RoomError(3, "room")))
    assert isinstance(received, BoughError)
    assert (str(received), received.exit_code) == ("room 3", 7)
