"""A bar that counts steps or episodes, with numbers beside it; plain lines if there is no terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bough.terminal.console import err, is_live

# Seconds between two lines if there is no terminal.
LINE_EVERY_S = 10.0


class NumbersProgress:
    """What the progress of training and of episodes have in common. `unit` is what is counted.

    The first line without a terminal comes right away or, if not `at_once`, after `LINE_EVERY_S`.
    """

    def __init__(self, unit: str, *, at_once: bool) -> None:
        self.console = err()
        columns = (
            TextColumn(unit), MofNCompleteColumn(), BarColumn(),
            TextColumn("{task.fields[numbers]}"), TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        self.bar = Progress(*columns, console=self.console, transient=True, disable=not is_live(self.console))
        self._said_at = float("-inf") if at_once else time.monotonic()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def count_to(self, total: int) -> None:
        self.task = self.bar.add_task("", total=total, numbers="")

    def show(self, done: int, numbers: str, line: str) -> None:
        """Moves the bar to `done`; without a terminal prints `line` and the numbers every few seconds."""
        self.bar.update(self.task, completed=done, numbers=numbers)
        if not is_live(self.console) and time.monotonic() - self._said_at >= LINE_EVERY_S:
            self._said_at = time.monotonic()
            self.console.print(f"{line}  {numbers}", markup=False)
