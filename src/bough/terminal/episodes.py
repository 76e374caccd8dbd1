"""Progress of episodes."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bough.terminal.console import err, is_live

# Seconds between two lines if there is no terminal.
LINE_EVERY_S = 10.0


class EpisodesProgress:
    """A bar with episodes/s, tokens/s, successes and faults; plain lines if there is no terminal."""

    def __init__(self, total: int) -> None:
        self.console = err()
        columns = (
            TextColumn("episodes"), MofNCompleteColumn(), BarColumn(),
            TextColumn("{task.fields[numbers]}"), TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        self.bar = Progress(*columns, console=self.console, transient=True, disable=not is_live(self.console))
        self.task = self.bar.add_task("episodes", total=total, numbers="")
        self.total = total
        self._said_at = time.monotonic()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def tell(self, numbers: dict[str, Any]) -> None:
        """Shows the numbers of a tally."""
        episodes, seconds = numbers["episodes"], max(numbers["seconds"], 1e-9)
        rate = numbers["success_rate"]
        parts = [
            f"success {'–' if rate is None else f'{rate:.1%}'}",
            f"{episodes / seconds:.2g} episodes/s",
            f"{numbers['completion_tokens'] / seconds:,.0f} tokens/s",
        ]
        parts += [f"{count} {what}" for what, count in numbers["errors"].items()]
        parts += [f"{count} {what} faults" for what, count in numbers["faults"].items()]
        text = "  ".join(parts)
        self.bar.update(self.task, completed=episodes, numbers=text)
        if not is_live(self.console) and time.monotonic() - self._said_at >= LINE_EVERY_S:
            self._said_at = time.monotonic()
            self.console.print(f"{episodes} of {self.total} episodes  {text}", markup=False)
