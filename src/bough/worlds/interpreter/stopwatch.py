"""The time that one test may take. Runs in the tests' process."""

from __future__ import annotations

import signal
import time
from types import FrameType

# A test may take this many times its limit in all, the time of the program's calls included.
PATIENCE = 5.0


class FailedError(BaseException):
    """The program gave no value that a test could look at. Not an Exception, which tests catch."""


class Stopwatch:
    """The time that one test computes.

    It stands still while the program is asked, which has its own time for each call; a
    test that asks again and again is ended when it has taken many times the limit.
    """

    def __init__(self) -> None:
        self.limit_s = self.left_s = self.end = 0.0
        self.expired = False
        signal.signal(signal.SIGALRM, self._late)

    def start(self, limit_s: float) -> None:
        self.limit_s = self.left_s = limit_s
        self.end = time.monotonic() + PATIENCE * limit_s
        self.expired = False
        self.resume()

    def stop(self) -> None:
        self.left_s = signal.setitimer(signal.ITIMER_REAL, 0)[0]

    def resume(self) -> None:
        # Again each second, for tests that catch it.
        signal.setitimer(signal.ITIMER_REAL, max(0.01, self.left_s), 1.0)

    def _late(self, _: int, __: FrameType | None) -> None:
        self.expired = True
        raise FailedError("the test took too long")
