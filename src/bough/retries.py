"""Requests that are tried again: which failures may pass, how often, and with which waits."""

from __future__ import annotations

import asyncio
import email.utils
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from bough.plural import plural

T = TypeVar("T")
log = logging.getLogger(__name__)
# Statuses of a busy or restarting server.
PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}


@dataclass(frozen=True, kw_only=True)
class RetryLimits:
    """The n-th retry comes after about `backoff_s` * 2**n seconds, later if the server says so.

    A server that asks for more than `longest_wait_s` is not waited for.
    """

    retries: int = 6
    backoff_s: float = 0.5
    longest_wait_s: float = 120.0

    def wait_s(self, attempt: int, retry_after_s: float) -> float | None:
        """How long to wait after an attempt; None if that is too long."""
        if retry_after_s > self.longest_wait_s:
            return None
        # Between half and all of it, so that many clients do not come back at the same moment.
        wait_s = self.backoff_s * float(2**attempt) * random.uniform(0.5, 1)  # noqa: S311
        return min(max(wait_s, retry_after_s), self.longest_wait_s)


class PassingError(Exception):
    """What may be gone at the next try. `retry_after_s` is the wait that the server asks for."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


async def retried(
    once: Callable[[], Awaitable[T]],
    limits: RetryLimits,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    on_retry: Callable[[], None] | None = None,
) -> T:
    """What `once` returns, tried again while it raises PassingError. The last one is raised, with a count of tries."""
    for attempt in range(limits.retries + 1):
        try:
            return await once()
        except PassingError as error:
            left = limits.retries - attempt
            wait_s = limits.wait_s(attempt, error.retry_after_s)
            if left == 0 or wait_s is None:
                tried = "" if attempt == 0 else f" (tried {attempt + 1} times)"
                raise PassingError(f"{error}{tried}") from None
            log.info("%s; trying again in %.1f s, %s left", error, wait_s, plural(left, "try"))
        if on_retry is not None:
            on_retry()
        await sleep(wait_s)
    raise AssertionError("the last attempt returns or raises")


def retry_after_s(header: str | None) -> float:
    """The seconds from now that a Retry-After header asks for, in either of its forms."""
    if not header:
        return 0.0
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0
