"""Interrupts code that takes too long, in the thread in which it runs.

Rewards stay in the caller's thread: libraries such as math-verify keep their own time with
signals, which only the main thread can have. So a second thread watches, and a signal
interrupts the main thread, also where it waits for the system. In other threads nothing is
watched; Python cannot interrupt those.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

# Ignored by default, so that one that arrives late does no harm.
SIGNAL = signal.SIGURG
# Again after this time, for code that catches everything.
AGAIN_S = 1.0


class TimeUpError(BaseException):
    """Raised in the code that took too long. Not an Exception, which authors catch."""


class Watchdog:
    """Raises TimeUpError in the main thread when more than `timeout_s` has passed since the last `restart`."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._end: float | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._old: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._old = signal.signal(SIGNAL, self._interrupt)
            self._thread = threading.Thread(target=self._watch, name="bough-watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.rest()
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            signal.signal(SIGNAL, self._old)

    def restart(self) -> None:
        """Gives the code the whole time again."""
        self._end = time.monotonic() + self.timeout_s

    def rest(self) -> None:
        """Watches nothing until the next `restart`."""
        self._end = None

    def _interrupt(self, _: int, __: FrameType | None) -> None:
        end = self._end
        if end is not None and time.monotonic() >= end:
            self._end = time.monotonic() + AGAIN_S
            raise TimeUpError

    def _watch(self) -> None:
        wait_s = self.timeout_s
        while not self._ended.wait(wait_s):
            end = self._end
            # Code that begins only now has its whole time before it.
            wait_s = self.timeout_s if end is None else end - time.monotonic()
            if wait_s <= 0:
                signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)
                wait_s = AGAIN_S
