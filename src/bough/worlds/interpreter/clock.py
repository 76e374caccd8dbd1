"""The time that the programs of one step share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Counts down from `total_s`."""

    def __init__(self, total_s: float) -> None:
        self.total_s = total_s
        self._end = time.monotonic() + total_s

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """A context whose time does not count."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._end += time.monotonic() - begin
