import asyncio

import pytest

from bough.event_loop import PassingError, RetryLimits, retried, retry_after_s


def tried(*failures: PassingError, **limits: float) -> tuple[str, list[float]]:
    """What comes of failures one after the other, then of a success; and the waits in between."""
    waits, left = list[float](), list(failures)

    async def once() -> str:
        if left:
            raise left.pop(0)
        return "fine"

    async def note(seconds: float) -> None:
        waits.append(seconds)

    return asyncio.run(retried(once, RetryLimits(**limits), sleep=note)), waits  # type: ignore[arg-type]


def test_waits_grow_and_a_server_may_ask_for_longer_ones():
    found, waits = tried(PassingError("a"), PassingError("b", 5.0), PassingError("c"), backoff_s=1.0)
    assert found == "fine" and 0.5 <= waits[0] <= 1 and waits[1] == 5 and 2 <= waits[2] <= 4


def test_the_last_failure_says_how_often_it_was_tried():
    with pytest.raises(PassingError, match=r"^b \(tried 2 times\)$"):
        tried(PassingError("a"), PassingError("b"), retries=1)
    with pytest.raises(PassingError, match=r"^a$"):
        tried(PassingError("a"), retries=0)


def test_a_server_that_asks_for_too_much_patience_is_not_waited_for():
    with pytest.raises(PassingError, match=r"^tomorrow$"):
        tried(PassingError("tomorrow", 86_400.0), retries=3)


def test_retry_after_is_read_where_it_is_a_number_of_seconds():
    assert retry_after_s("2.5") == 2.5
    assert retry_after_s("-1") == 0
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert retry_after_s("soon") == retry_after_s(None) == 0
