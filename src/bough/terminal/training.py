"""Progress of a training run: a bar with the main numbers, plain lines if there is no terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bough.ledger import Ledger
from bough.terminal.console import err, is_live

SHOWN = ("loss", "accuracy", "margin", "eval_loss", "reward", "success", "eval_success")
# Seconds between two lines if there is no terminal.
LINE_EVERY_S = 10.0


class TrainingProgress:
    """Shows every step."""

    def __init__(self) -> None:
        self.console = err()
        columns = (
            TextColumn("step"), MofNCompleteColumn(), BarColumn(),
            TextColumn("{task.fields[numbers]}"), TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        self.bar = Progress(*columns, console=self.console, transient=True, disable=not is_live(self.console))
        self.numbers: dict[str, float] = {}
        self._said_at = 0.0

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def begin(self, num_steps: int, *ledgers: Ledger) -> None:
        self.console.print("; ".join([*map(str, ledgers), f"{num_steps} steps"]), markup=False)
        self.task = self.bar.add_task("training", total=num_steps, numbers="")

    def tell(self, values: dict[str, Any]) -> None:
        self.numbers |= {name: values[name] for name in SHOWN if name in values}
        if "tokens_per_s" in values:
            self.numbers |= {"tokens/s": values["raw_tokens_per_s"], "shared": values["shared"]}
        text = "  ".join(
            f"{name} {_short(value)}{'×' if name == 'shared' else ''}" for name, value in self.numbers.items()
        )
        self.bar.update(self.task, completed=values["step"], numbers=text)
        if not is_live(self.console) and time.monotonic() - self._said_at >= LINE_EVERY_S:
            self._said_at = time.monotonic()
            self.console.print(f"step {values['step']}  {text}", markup=False)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
